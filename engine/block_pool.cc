#include "engine/block_pool.h"

#include <bit>

#include "base/check.h"

namespace canarynet {
namespace {

std::uint32_t logarithm(std::uint32_t length) { return static_cast<std::uint32_t>(std::bit_width(length) - 1) & 31; }

}  // namespace

BlockPool::BlockPool(std::uint32_t blocks) : blocks_(blocks), tags_(std::make_unique_for_overwrite<Tag[]>(blocks)) {
  lists_.fill(kNone);
  if (blocks != 0) add(0, blocks);
}

void BlockPool::set(std::uint32_t first, std::uint32_t length, bool free) {
  for (const std::uint32_t end : {first, first + length - 1}) {
    tags_[end].length = length;
    tags_[end].free = free;
  }
}

void BlockPool::add(std::uint32_t first, std::uint32_t length) {
  set(first, length, true);
  std::uint32_t& head = lists_[logarithm(length)];
  tags_[first].previous = kNone;
  tags_[first].next = head;
  if (head != kNone) tags_[head].previous = first;
  head = first;
  filled_ |= 1u << logarithm(length);
}

void BlockPool::remove(std::uint32_t first) {
  const Tag& t = tags_[first];
  const std::uint32_t list = logarithm(t.length);
  (t.previous != kNone ? tags_[t.previous].next : lists_[list]) = t.next;
  if (t.next != kNone) tags_[t.next].previous = t.previous;
  if (lists_[list] == kNone) filled_ &= ~(1u << list);
}

std::uint32_t BlockPool::take(std::uint32_t count) {
  std::uint32_t found = kNone;
  // Where lengths are of the count's own power of two, some are long enough; in all lists above, every one is.
  int tries = kTries;
  for (std::uint32_t at = lists_[logarithm(count)]; at != kNone && found == kNone && tries > 0; --tries) {
    if (tags_[at].length >= count) found = at;
    at = tags_[at].next;
  }
  if (found == kNone) {
    const std::uint32_t longer = filled_ & ~((2u << logarithm(count)) - 1);
    if (longer == 0) return kNone;
    found = lists_[static_cast<std::uint32_t>(std::countr_zero(longer))];
  }
  const std::uint32_t length = tags_[found].length;
  remove(found);
  set(found, count, false);
  if (length > count) add(found + count, length - count);
  return found;
}

void BlockPool::release(std::uint32_t first) {
  CANARY_CHECK(first < blocks_ && !tags_[first].free, "blocks are released once");
  std::uint32_t length = tags_[first].length;
  if (const std::uint32_t behind = first + length; behind < blocks_ && tags_[behind].free) {
    length += tags_[behind].length;
    remove(behind);
  }
  if (first != 0 && tags_[first - 1].free) {
    first -= tags_[first - 1].length;
    length += tags_[first].length;
    remove(first);
  }
  add(first, length);
}

}  // namespace canarynet
