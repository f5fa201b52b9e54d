#include "engine/eager_store.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/hashed_bag.h"

namespace canarynet {
namespace {

// Full of the smallest pieces, a bucket holds eight.
std::size_t buckets_for(std::uint64_t blocks) { return std::bit_ceil(std::max<std::uint64_t>(blocks / 8, 16)); }

}  // namespace

EagerStore::EagerStore(std::uint64_t bytes, Keeps keeps)
    : keeps_(keeps),
      bytes_(bytes),
      memory_(bytes),
      blocks_(static_cast<std::uint32_t>(bytes / kBlock)),
      mask_(buckets_for(bytes / kBlock) - 1),
      names_(mask_ + 1),
      talks_(mask_ + 1) {
  entries_.reserve(bytes / kBlock);
}

std::uint64_t EagerStore::talk_of(const wire::Header& h) const {
  const std::uint64_t pair = std::uint64_t{h.flow} << 32 | std::uint32_t{h.source} << 16 | std::uint32_t{h.destination};
  if (keeps_ == Keeps::kMessages) return mixed_bits(pair);
  return mixed_bits(mixed_bits(pair) ^ (std::uint64_t{h.epoch} << 32 | h.op));
}

std::uint64_t EagerStore::name_of(const wire::Header& h) const {
  return mixed_bits(talk_of(h) ^ mixed_bits(std::uint64_t{h.epoch} << 32 | h.op) ^
                    (std::uint64_t{h.step} << 32 | h.piece));
}

bool EagerStore::is_same_talk(const wire::Header& a, const wire::Header& b) const {
  return a.flow == b.flow && a.source == b.source && a.destination == b.destination &&
         (keeps_ == Keeps::kMessages || (a.epoch == b.epoch && a.op == b.op));
}

bool EagerStore::is_same_name(const wire::Header& a, const wire::Header& b) {
  return a.flow == b.flow && a.epoch == b.epoch && a.op == b.op && a.step == b.step && a.source == b.source &&
         a.destination == b.destination && a.piece == b.piece;
}

template <EagerStore::Link EagerStore::Entry::*link>
void EagerStore::append(std::uint32_t* head, std::uint32_t index) {
  Link& own = entries_[index - 1].*link;
  if (*head == 0) {
    own = {index, 0};
    *head = index;
    return;
  }
  Link& first = entries_[*head - 1].*link;
  own = {first.previous, 0};
  (entries_[first.previous - 1].*link).next = index;
  first.previous = index;
}

template <EagerStore::Link EagerStore::Entry::*link>
void EagerStore::unlink(std::uint32_t* head, std::uint32_t index) {
  const Link own = entries_[index - 1].*link;
  const std::uint32_t first = *head;
  if (own.next != 0) {
    (entries_[own.next - 1].*link).previous = own.previous;
  } else if (first != index) {
    (entries_[first - 1].*link).previous = own.previous;  // it was the last one
  }
  if (first == index) {
    *head = own.next;
  } else {
    (entries_[own.previous - 1].*link).next = own.next;
  }
}

EagerStore::Entry* EagerStore::find(const wire::Header& header) {
  if (used_ == 0) return nullptr;
  for (std::uint32_t at = names_[name_of(header) & mask_]; at != 0; at = entries_[at - 1].same_name.next) {
    if (is_same_name(entries_[at - 1].header, header)) return &entries_[at - 1];
  }
  return nullptr;
}

EagerStore::Entry* EagerStore::take(const wire::Header& header) {
  const std::uint32_t first = blocks_.take(charge(header.payload_bytes) / kBlock);
  if (first == BlockPool::kNone) return nullptr;
  std::uint32_t index = unused_;
  if (index != 0) {
    unused_ = entries_[index - 1].same_name.next;
  } else {
    entries_.emplace_back();  // there are never more than blocks
    index = static_cast<std::uint32_t>(entries_.size());
  }
  Entry& e = entries_[index - 1];
  charged_ += charge(header.payload_bytes);
  e.header = header;
  e.first_block = first;
  e.used = true;
  e.complete = false;
  append<&Entry::same_name>(&names_[name_of(header) & mask_], index);
  append<&Entry::same_talk>(&talks_[talk_of(header) & mask_], index);
  ++used_;
  return &e;
}

void EagerStore::release(Entry* e) {
  CANARY_CHECK(e->used, "a parked piece is released once");
  const auto index = static_cast<std::uint32_t>(e - entries_.data()) + 1;
  unlink<&Entry::same_name>(&names_[name_of(e->header) & mask_], index);
  unlink<&Entry::same_talk>(&talks_[talk_of(e->header) & mask_], index);
  blocks_.release(e->first_block);
  charged_ -= charge(e->header.payload_bytes);
  e->used = false;
  e->same_name.next = unused_;
  unused_ = index;
  --used_;
}

}  // namespace canarynet
