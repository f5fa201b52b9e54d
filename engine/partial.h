// engine/partial.h -- an all-reduce among some ranks of a group, for which nobody forms a group.
//
// What: its calls make a group of their own, whose number and epoch follow from the arguments (the parent's number and
// epoch, the caller's number for this exchange, the lowest rank), so that all members find the same one without asking
// anybody. It runs one operation, or two: where weights count in a mean, their sum first. Then it is gone.
// What comes for one that is not called here yet waits as for a group that is being formed; what comes late for one
// that is over is known by PastPartials. Design: docs/decisions/0043-groups-that-nobody-forms.md.
// Thread: the engine's owner.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "control/membership.h"
#include "port/command.h"
#include "port/ticket.h"
#include "transport/wire.h"

namespace canarynet {

struct GroupMember;

// The call of one local rank.
struct PartialCall {
  GroupMember* member = nullptr;  // in the group that was made for it
  port::MemberId caller;          // in the parent
  OpRequest request;
  OpTicket* ticket = nullptr;
  OpTicket inner;  // of the operation that runs
  Nanos submitted, deadline;
  double weight = 1;
  double total = 0;  // of all weights
  enum class Step : std::uint8_t { kNone, kWeights, kElements, kDone };
  Step step = Step::kNone;
};

struct PartialOperation {
  std::uint64_t number = 0;  // as callers count their exchanges
  std::uint32_t parent = 0;  // the group's number
  std::uint32_t parent_epoch = 0;
  bool weighted = false;                            // as the first local call has it
  std::vector<std::unique_ptr<PartialCall>> calls;  // by place among the group's local members
};

// The number and first epoch of the group for it. Any two with the same four have the same ones; of different ones both
// are equal by chance in one of 2^61 cases.
GroupEpoch partial_group(std::uint32_t parent, std::uint32_t parent_epoch, std::uint64_t number, int lowest);

// Its part of a signature.
enum class PartialPart : std::uint64_t { kPlain = 0, kWeights = 1, kWeighted = 2 };
void sign_partial(const PartialOperation& partial, const std::vector<int>& members, bool weights,
                  wire::SignaturePayload* out);
bool is_partial(const wire::SignaturePayload& signature);
// The first ranks of the list; at most as many as a signature has room for.
std::vector<int> ranks_in(const wire::SignaturePayload& signature);
// "partial_all_reduce #7 among ranks 1, 3, 4"
std::string describe_partial(const wire::SignaturePayload& signature);
std::string describe_partial(std::uint64_t number, const std::vector<int>& members);

// A number that ranks served here gave to a list.
struct SpentNumber {
  std::uint64_t number = 0;
  GroupEpoch parent;
  std::vector<int> members, callers;  // world ranks
};

// Those that are over here, the newest ones: how each ended.
class PastPartials {
 public:
  static constexpr std::size_t kKept = 512;
  // The first word counts.
  void add(GroupEpoch group, Status status, SpentNumber spent = {});
  // nullptr: it is not known to be over.
  const Status* find(GroupEpoch group) const;
  // Of those that failed, one for which `fits` holds; nullptr: none.
  template <typename Fits>
  const SpentNumber* find_failed(const Fits& fits) const {
    for (std::size_t i = 0; failed_ != 0 && i < past_.size(); ++i) {
      if (!past_[i].end.ok() && fits(past_[i].spent)) return &past_[i].spent;
    }
    return nullptr;
  }

 private:
  static constexpr std::uint16_t kNone = 0xffff;
  struct Past {
    GroupEpoch group;
    Status end;
    std::uint16_t next = kNone;  // of the same chain
    SpentNumber spent;
  };
  // A group's number is a hash already.
  std::uint16_t& chain_of(GroupEpoch group) { return chains_[group.flow % chains_.size()]; }
  void unlink(std::uint16_t index);
  std::vector<Past> past_;             // by age from oldest_ on
  std::vector<std::uint16_t> chains_;  // the newest one of each, by place in past_; none before the first add()
  std::size_t oldest_ = 0;
  std::size_t failed_ = 0;
};

}  // namespace canarynet
