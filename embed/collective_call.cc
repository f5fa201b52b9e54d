#include "embed/collective_call.h"

#include <algorithm>
#include <cstdio>
#include <string>

namespace canarynet {
namespace {

constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 46;

// Elements from the begin of a buffer to the end of the last block in it; without regard to the root.
std::uint64_t extent(const GroupMember& member, const OpRequest& request, bool all_blocks, std::size_t list) {
  const auto size = member.group->members.size();
  if (!has_counts(request.collective)) return all_blocks ? request.count * size : request.count;
  if (request.collective == Collective::kAllGatherV)
    return all_blocks ? request.count : request.counts[static_cast<std::size_t>(member.rank)];
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const std::uint64_t count = request.counts[list * size + i];
    if (count != 0) end = std::max(end, request.counts[(list + 1) * size + i] + count);
  }
  return end;
}
std::uint64_t input_extent(const GroupMember& member, const OpRequest& request) {
  return extent(member, request, input_in_blocks(request.collective), 0);
}
std::uint64_t output_extent(const GroupMember& member, const OpRequest& request) {
  return extent(member, request, output_in_blocks(request.collective), 2);
}

// The lists of the operations that have them; messages without the operation's name.
Status check_counts(const GroupMember& member, const OpRequest& request) {
  const auto size = member.group->members.size();
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < request.counts.size(); ++i) {
    const std::uint64_t most = kBytesMax / size_of(request.type);
    sum += std::min(request.counts[i], most + 1);  // displacements as well: no sum of them wraps
    if (request.counts[i] > most || (sum > most && request.collective == Collective::kAllGatherV)) {
      return Status(CANARY_INVALID_ARGUMENT, "count " + std::to_string(request.counts[i]) + " of rank " +
                                                 std::to_string(i % size) + " is too large");
    }
  }
  if (request.collective != Collective::kAllToAllV) return {};
  const auto self = static_cast<std::size_t>(member.rank);
  const std::uint64_t sends = request.counts[self], receives = request.counts[2 * size + self];
  if (sends == receives) return {};
  return Status(CANARY_INVALID_ARGUMENT, "rank " + std::to_string(self) + " sends " + std::to_string(sends) +
                                             " elements to itself and receives " + std::to_string(receives));
}

// Bytes that a call reads or writes.
struct Range {
  std::uintptr_t begin = 0;
  std::uint64_t bytes = 0;
  const char* what = "";
  bool written = false;
};

bool meet(const Range& a, const Range& b) {
  if (a.bytes == 0 || b.bytes == 0) return false;
  return a.begin <= b.begin ? b.begin - a.begin < a.bytes : a.begin - b.begin < b.bytes;
}

std::string text_of(const Range& r) {
  char text[64];
  std::snprintf(text, sizeof text, " [0x%llx, 0x%llx)", static_cast<unsigned long long>(r.begin),
                static_cast<unsigned long long>(r.begin + r.bytes));
  return r.what + std::string(text);
}

// Where, in elements, one of both begins in the other when the operation is done in place, and how callers write that;
// -1: never in place.
struct InPlace {
  std::int64_t input_at = -1;   // in the output
  std::int64_t output_at = -1;  // in the input
  const char* written = "";
};
InPlace in_place(const GroupMember& member, const OpRequest& request) {
  const auto own_block = static_cast<std::int64_t>(static_cast<std::uint64_t>(member.rank) * request.count);
  switch (request.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast:
      return {0, 0, "output == input"};
    case Collective::kReduceScatter:
    case Collective::kScatter:
      return {-1, own_block, "output == input + rank * count"};
    case Collective::kAllGather:
    case Collective::kGather:
      return {own_block, -1, "input == output + rank * count"};
    case Collective::kAllGatherV: {
      std::uint64_t before = 0;
      for (int i = 0; i < member.rank; ++i) before += request.counts[static_cast<std::size_t>(i)];
      return {static_cast<std::int64_t>(before), -1, "input == output + the counts of the ranks before"};
    }
    default:
      return {};
  }
}

// The first two of them that meet, of which one is written.
Status check_apart(std::vector<Range> ranges) {
  std::erase_if(ranges, [](const Range& r) { return r.bytes == 0; });
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  const Range* read = nullptr;  // that reaches farthest, of those before
  const Range* wrote = nullptr;
  for (const Range& r : ranges) {
    const Range* other = wrote != nullptr && meet(*wrote, r)              ? wrote
                         : r.written && read != nullptr && meet(*read, r) ? read
                                                                          : nullptr;
    if (other != nullptr) return Status(CANARY_INVALID_ARGUMENT, text_of(*other) + " and " + text_of(r) + " overlap");
    const Range*& farthest = r.written ? wrote : read;
    if (farthest == nullptr || r.begin + r.bytes > farthest->begin + farthest->bytes) farthest = &r;
  }
  return {};
}

// What all_to_all_v receives has a place of its own, block by block.
Status check_blocks(const GroupMember& member, const OpRequest& request) {
  const auto size = member.group->members.size();
  const std::size_t element = size_of(request.type);
  std::vector<Range> blocks;
  blocks.reserve(2 * size);
  for (std::size_t list : {std::size_t{0}, std::size_t{2}}) {
    const auto base = reinterpret_cast<std::uintptr_t>(list == 0 ? request.input : request.output);
    for (std::size_t i = 0; i < size; ++i) {
      blocks.push_back({base + request.counts[(list + 1) * size + i] * element,
                        request.counts[list * size + i] * element,
                        list == 0 ? "a block of the input" : "a block of the output", list == 2});
    }
  }
  return check_apart(std::move(blocks));
}

// Whether the blocks of one list lie one behind the other, as they nearly always do.
bool ascending(const OpRequest& request, std::size_t size, std::size_t list) {
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const std::uint64_t count = request.counts[list * size + i], at = request.counts[(list + 1) * size + i];
    if (count == 0) continue;
    if (at < end) return false;
    end = at + count;
  }
  return true;
}

// `in` and `out` in elements.
Status check_overlap(const GroupMember& member, const OpRequest& request, std::uint64_t in, std::uint64_t out) {
  const std::size_t element = size_of(request.type);
  const Range input{reinterpret_cast<std::uintptr_t>(request.input), in * element, "input", false};
  const Range output{reinterpret_cast<std::uintptr_t>(request.output), out * element, "output", true};
  if (request.collective == Collective::kAllToAllV) {
    const bool plain = !meet(input, output) && ascending(request, member.group->members.size(), 2);
    return plain ? Status() : check_blocks(member, request);
  }
  if (!meet(input, output)) return {};
  const InPlace allowed = in_place(member, request);
  const auto is_at = [element](const Range& inner, const Range& outer, std::int64_t at) {
    return at >= 0 && inner.begin == outer.begin + static_cast<std::uint64_t>(at) * element;
  };
  if (is_at(input, output, allowed.input_at) || is_at(output, input, allowed.output_at)) return {};
  const std::string both = text_of(input) + " and " + text_of(output) + " overlap";
  if (*allowed.written == '\0') return Status(CANARY_INVALID_ARGUMENT, both);
  return Status(CANARY_INVALID_ARGUMENT, both + ": in place is " + allowed.written);
}

}  // namespace

void copy_counts(std::initializer_list<CountList> lists, std::size_t size, std::vector<std::uint64_t>* out) {
  out->clear();
  for (const CountList& list : lists) {
    const std::size_t before = out->size() - (list.displacements ? size : 0);  // the counts that they belong to
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < size; ++i) {
      out->push_back(list.numbers != nullptr ? list.numbers[i] : at);
      if (list.displacements) at += (*out)[before + i];
    }
  }
}

Status check_call(const GroupMember& member, const OpRequest& request) {
  const auto wrong = [&](const std::string& what) {
    return Status(CANARY_INVALID_ARGUMENT, std::string(name_of(request.collective)) + ": " + what);
  };
  if (static_cast<unsigned>(request.type) >= static_cast<unsigned>(kDataTypeCount))
    return wrong("type " + std::to_string(static_cast<int>(request.type)) + " is not a canary_type");
  if (static_cast<unsigned>(request.redop) >= static_cast<unsigned>(kReduceOpCount))
    return wrong("redop " + std::to_string(static_cast<int>(request.redop)) + " is not a canary_redop");
  const auto size = member.group->members.size();
  if (Status counts = check_counts(member, request); !counts.ok()) return wrong(counts.text());
  std::uint64_t total = 0;
  const bool too_large =
      __builtin_mul_overflow(request.count, size_of(request.type) * size, &total) || total > kBytesMax;
  if (!has_counts(request.collective) && too_large)
    return wrong("count " + std::to_string(request.count) + " is too large");
  if (has_root(request.collective) && (request.root < 0 || static_cast<std::size_t>(request.root) >= size)) {
    return wrong("root " + std::to_string(request.root) + " is outside of a group of " + std::to_string(size));
  }
  const bool is_root = request.root == member.rank;
  const std::uint64_t in = reads_input(request.collective, is_root) ? input_extent(member, request) : 0;
  const std::uint64_t out = writes_output(request.collective, is_root) ? output_extent(member, request) : 0;
  if (in != 0 && request.input == nullptr) return wrong("input is NULL");
  if (out != 0 && request.output == nullptr) return wrong("output is NULL");
  if (Status overlap = check_overlap(member, request, in, out); !overlap.ok()) return wrong(overlap.text());
  return {};
}

}  // namespace canarynet
