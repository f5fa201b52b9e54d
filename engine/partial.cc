#include "engine/partial.h"

#include <algorithm>
#include <utility>

#include "base/hashed_bag.h"
#include "kernels/crc32c.h"

namespace canarynet {
namespace {

// A signature has room for some ranks of the list, 16 bits each and one more than the rank; 0: none.
constexpr std::size_t kFirstWord = 2, kWords = 5, kRanksInWord = 4;
constexpr std::size_t kPartWord = 7;

}  // namespace

GroupEpoch partial_group(std::uint32_t parent, std::uint32_t parent_epoch, std::uint64_t number, int lowest) {
  const std::uint64_t place = mixed_bits((std::uint64_t{parent} << 32 | parent_epoch) + 0x9e3779b97f4a7c15u);
  const std::uint64_t bits =
      mixed_bits(mixed_bits(place ^ number) + (static_cast<std::uint64_t>(lowest) + 1) * 0x9e3779b97f4a7c15u);
  const auto flow = wire::kPartialFlow | (static_cast<std::uint32_t>(bits) & (wire::kPartialFlow - 1));
  const auto epoch = static_cast<std::uint32_t>(bits >> 32);
  return {flow, epoch != 0 ? epoch : 1};
}

void sign_partial(const PartialOperation& partial, const std::vector<int>& members, bool weights,
                  wire::SignaturePayload* out) {
  // Odd, so that it is not 0, which says that it is no partial one.
  out->counts_crc = crc32c(0, members.data(), members.size() * sizeof members[0]) | 1;
  out->counts_moment = partial.number;
  for (std::size_t i = 0; i < std::min(members.size(), kWords * kRanksInWord); ++i) {
    const auto rank = static_cast<std::uint64_t>(members[i]) + 1;
    out->counts[kFirstWord + i / kRanksInWord] |= rank << (16 * (i % kRanksInWord));
  }
  const PartialPart part = weights            ? PartialPart::kWeights
                           : partial.weighted ? PartialPart::kWeighted
                                              : PartialPart::kPlain;
  out->counts[kPartWord] = static_cast<std::uint64_t>(part);
}

bool is_partial(const wire::SignaturePayload& s) {
  return s.collective == static_cast<std::uint32_t>(Collective::kAllReduce) && s.counts_crc != 0;
}

std::vector<int> ranks_in(const wire::SignaturePayload& s) {
  std::vector<int> out;
  for (std::size_t i = 0; i < std::min<std::size_t>(s.members, kWords * kRanksInWord); ++i)
    out.push_back(static_cast<int>(s.counts[kFirstWord + i / kRanksInWord] >> (16 * (i % kRanksInWord)) & 0xffff) - 1);
  return out;
}

namespace {

std::string text_of(std::uint64_t number, const std::vector<int>& ranks, std::size_t all) {
  constexpr std::size_t kShown = 20;
  std::string out = "partial_all_reduce #" + std::to_string(number) + " among ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kShown); ++i)
    out += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return all > std::min(ranks.size(), kShown) ? out + ", ... (" + std::to_string(all) + ")" : out;
}

}  // namespace

std::string describe_partial(std::uint64_t number, const std::vector<int>& members) {
  return text_of(number, members, members.size());
}

std::string describe_partial(const wire::SignaturePayload& s) {
  std::string out = text_of(s.counts_moment, ranks_in(s), s.members);
  switch (static_cast<PartialPart>(s.counts[kPartWord])) {
    case PartialPart::kPlain:
      return out;
    case PartialPart::kWeights:
      return out + ", mean by weights:";
    case PartialPart::kWeighted:
      return out + ", weighted:";
  }
  return out;
}

void PastPartials::add(GroupEpoch group, Status status, SpentNumber spent) {
  if (find(group) != nullptr) return;
  if (chains_.empty()) {
    past_.reserve(kKept);
    chains_.assign(2 * kKept, kNone);
  }
  std::size_t index = past_.size();
  if (index < kKept) {
    past_.emplace_back();
  } else {
    index = std::exchange(oldest_, (oldest_ + 1) % kKept);
    unlink(static_cast<std::uint16_t>(index));
    failed_ -= past_[index].end.ok() ? 0 : 1;
  }
  failed_ += status.ok() ? 0 : 1;
  std::uint16_t& chain = chain_of(group);
  past_[index] = {group, std::move(status), chain, std::move(spent)};
  chain = static_cast<std::uint16_t>(index);
}

void PastPartials::unlink(std::uint16_t index) {
  std::uint16_t* at = &chain_of(past_[index].group);
  while (*at != index) at = &past_[*at].next;
  *at = past_[index].next;
}

const Status* PastPartials::find(GroupEpoch group) const {
  if (chains_.empty()) return nullptr;
  for (std::uint16_t at = chains_[group.flow % chains_.size()]; at != kNone; at = past_[at].next) {
    if (past_[at].group == group) return &past_[at].end;
  }
  return nullptr;
}

}  // namespace canarynet
