#include "embed/collective_call.h"

#include <algorithm>
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
  if (is_pairwise(request.collective) && in != 0 && out != 0) {
    const auto from = reinterpret_cast<std::uintptr_t>(request.input),
               to = reinterpret_cast<std::uintptr_t>(request.output);
    const std::size_t element = size_of(request.type);
    if (from < to + out * element && to < from + in * element) return wrong("input and output overlap");
  }
  return {};
}

}  // namespace canarynet
