// engine/decision_flow.h -- how all ranks of a group come to decide by one table of what was measured, as a flow.
//
// What: the group's engines form a tree, rooted at the engine of its first rank, along the rails that join them (on a
// flat network: a star). Levels that an engine has announced of its links travel up as REPORTs. The root costs the
// planners over them (collectives/table_costs.h), one walk per look, and where that changes a row it proposes a TABLE
// down the tree. Each engine answers with its LIMIT, the highest operation that its ranks will enter before they hear
// the outcome, and a parent passes on the latest of its part of the tree. COMMIT names the first operation behind all
// of them. So nobody can have entered an operation of the new table before everybody knows it. What goes wrong
// meanwhile ends the proposal with WITHDRAW, or with the group.
// Codecs of operations that let them be chosen (compress/codec_ask.h) come from the same table, and so does the planner
// that carries their AR-Topk's values, also where no other planner is measured: the flow stays silent until such an
// operation is entered.
// Memory: its own; the engine and the group outlive it. Allocates when levels or tables change, never for an operation.
// Thread: the engine's owner. Units: ns, bytes; operations by number (base/serial.h).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/units.h"
#include "collectives/measured_table.h"
#include "collectives/table_costs.h"
#include "engine/choice_use.h"
#include "engine/flow/flow.h"
#include "engine/level_book.h"
#include "engine/slowest_times.h"
#include "transport/decision_frames.h"

namespace canarynet {

class Engine;
struct Group;
struct GroupMember;

class DecisionFlow final : public Flow {
 public:
  // Announced levels travel at most so often.
  static constexpr Nanos kReportEvery = 500_ms;
  static constexpr Nanos kTimesEvery = 100_ms;
  // Levels rarely change alone: so long after the first change the table is made anew.
  static constexpr Nanos kSettles = 150_ms;
  // Rates are known later than round trips: the first table waits so long for one.
  static constexpr Nanos kWaitsForRates = 1_s;
  // Where codecs are to be chosen by rates, none of which is known after this, those are too high to be seen.
  static constexpr Nanos kCodecsWaitForRates = 4_s;
  static constexpr Nanos kTableEvery = 2_s;
  static constexpr Nanos kTableEveryMax = 60_s;  // after proposals that had to be withdrawn
  // While planners are tried one after the other.
  static constexpr Nanos kTrialEvery = 50_ms;
  // Between two rounds of trials, and ever longer while they follow each other.
  static constexpr Nanos kRoundEvery = 4_s, kRoundEveryMax = 60_s;
  // So long after a round the times that stand are doubted, though nothing that is known has changed. Each time the
  // pause is kCheckTimes as long.
  static constexpr Nanos kCheckAfter = 8_s, kCheckPauseMax = 3'600_s;
  // And so long after the first one: a job's first operations go over lanes that nobody knew. Those of a round that
  // took longer than kCheckAfter were known for most of it.
  static constexpr Nanos kFirstCheckAfter = 1_s;
  static constexpr std::int64_t kCheckTimes = 4;
  // Whether a new table keeps what it promised is first looked at after so long.
  static constexpr Nanos kJudgeAfter = 1_s;
  static constexpr Nanos kWalkEvery = 2_ms;
  static constexpr Nanos kProposalLimit = 1_s;
  static constexpr Nanos kRateWindow = 100_ms;
  static constexpr std::uint32_t kAheadMin = 4, kAheadMax = 1 << 20;  // operations beyond what was entered
  // The same where only codecs are chosen: their operations are long, and a held one waits for a round trip.
  static constexpr std::uint32_t kAheadMinOfCodecs = 1;

  // Whether the groups' engines agree on tables: there are several hosts, not too many ranks to walk their plans, and a
  // way from the first rank to all others.
  static bool serves(const Engine& engine, const Group& group);
  DecisionFlow(Engine& engine, Group& group);

  // The table by which a local rank that enters this operation decides.
  const MeasuredTable& table_for(std::uint32_t operation) const;
  // Whether the member's next operation has to wait for the outcome of a proposal.
  bool holds(const GroupMember& member) const;
  // The engine whose word is waited for while a member is held.
  std::uint32_t waits_for() const { return parent_; }
  // Whether what operations took by rings in this order is kept: those of an order that was given up tell nothing.
  bool keeps_times_of(const std::vector<std::uint16_t>& order) const { return order.empty() || order == ring_order_; }
  // Between a proposal and its outcome.
  bool proposal_open() const { return open_; }
  // An operation of a class of sizes that was not used before has been entered.
  void note_new_class();
  // One of a class of which none ran for a while has been entered.
  void note_class_wakes();
  // A local rank has ended an operation by what `took` counts.
  void note_time(std::uint32_t operation, Nanos time, ChoiceUse::Took* took);
  // Time passes: often enough in housekeeping, and when the moment comes that this returns.
  Nanos poll(Nanos now);
  void on_engine_left(std::uint32_t engine);
  // The group ends here: whoever waits for a word from here gets the last one. Leaves all queues.
  void close();
  // The group is dead.
  void abandon();

  // Flow
  bool next_frame(Mux& to, Turn& turn, OutPiece* out) override;
  void on_done(Mux&, std::uint64_t) override {}
  Landing landing_for(Mux& from, const wire::Header& header) override;
  bool on_arrival(Mux& from, const wire::Header& header, const Arrival& arrival) override;
  void on_landing_lost(Mux&, const wire::Header&, std::uint64_t) override {}

 private:
  // A neighbour in the tree, and what is to be said to it.
  struct Neighbour : Turn {
    explicit Neighbour(Flow* flow) : Turn(flow, FlowClass::kControl) {}
    std::uint32_t engine = 0;
    bool child = false;
    bool left = false;
    bool report = false;
    bool times = false;  // to a parent
    bool table = false;
    bool limit = false;    // to a parent
    bool outcome = false;  // to a child
    // Of the child's part of the tree, in the open proposal.
    bool has_limit = false;
    std::uint32_t last = 0;
  };
  bool is_root() const { return parent_ == kNone; }
  std::size_t place_of(std::uint32_t engine) const;
  Neighbour* neighbour(std::uint32_t engine);
  void wake(Neighbour& neighbour);
  std::uint32_t latest_entered() const;
  bool used() const;
  bool measures_planners() const;
  bool measures_plans() const;
  bool runs_now(std::uint32_t codec) const;
  bool active() const;
  bool all_tried() const;
  bool lacks_rate(std::uint32_t asked) const;
  bool outcome_waits() const;

  void look_at_links();
  void take_level(const wire::LinkLevel& level);
  void count_levels(Nanos now, bool felt);
  void count_entered(Nanos now);
  Nanos rule(Nanos now);
  void judge(Nanos now, bool moved, bool codecs_moved);
  void judge_soon(Nanos now);
  void end_costing(Nanos now);
  void judge_anew();
  void take_time(std::uint32_t operation, std::uint32_t us, ChoiceUse::Took* took);
  void take_guess(double beta, Nanos now);
  void begin_costing(Nanos now);
  bool rates_moved();
  LinkCost usual_link() const;
  void choose_codecs(std::vector<MeasuredRow>* rows);
  std::vector<std::uint16_t> order_of(const std::vector<MeasuredRow>& rows) const;
  void propose(std::vector<MeasuredRow> rows, Nanos now);
  void open(MeasuredTable table);
  void limit_is_known();
  void commit(std::uint32_t valid_from);
  void withdraw();
  void settle();

  bool on_table(Neighbour& from, Mux& mux, const wire::TableProposal& table);
  void on_report(const Neighbour& from, Mux& mux, const wire::LevelReport& report);

  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  Engine& engine_;
  Group& group_;
  std::vector<std::uint32_t> engines_;  // of the group, in the order of their first ranks
  std::vector<int> first_rank_;         // of each, in the group
  std::vector<std::uint32_t> branch_;   // of each: the child here that leads to it; kNone: none does
  std::uint32_t parent_ = kNone;        // an engine
  std::vector<std::unique_ptr<Neighbour>> neighbours_;

  LevelBook levels_;  // all that passed through here
  std::uint64_t changes_seen_ = 0;
  SlowestTimes slowest_;
  std::array<wire::OperationTime, wire::kTimesPerReport> times_;  // of this part of the tree, for the parent
  std::size_t times_kept_ = 0;
  Nanos next_times_;
  Nanos next_report_;

  // The tables: `current_` from `valid_from_` on, `previous_` before, while some local rank is not there yet.
  MeasuredTable current_, previous_;
  std::uint32_t valid_from_ = 0;
  bool settled_ = true;
  std::uint32_t last_version_ = 0;  // that was proposed and is over

  bool open_ = false;
  MeasuredTable proposal_;
  std::uint32_t limit_ = 0;       // operations beyond it wait
  std::uint32_t part_limit_ = 0;  // of this part of the tree
  Nanos opened_;
  std::uint32_t outcome_version_ = 0, outcome_from_ = 0;  // as `outcome` tells it
  bool outcome_commits_ = false;

  // How many operations were entered lately.
  Nanos window_began_;
  std::uint32_t entered_then_ = 0, in_window_ = 0;

  // The root's.
  std::optional<TableCosting> costing_;
  bool changed_ = false;  // levels or classes, since they were last costed
  Nanos changed_since_, first_used_ = Nanos::max();
  Nanos next_table_, pause_ = kTableEvery;
  // Of trials; there is something to be tried; something else is to be timed again, since what decides has moved.
  bool in_round_ = false, round_waits_ = false, moved_ = false;
  bool first_round_ = true;                                                  // there has been none yet that ended
  Nanos round_began_, next_round_, next_trial_, round_pause_ = kRoundEvery;  // next_trial_: unless something has moved
  Nanos next_check_ = Nanos::max(), check_pause_ = kCheckAfter;
  bool judged_ = true;  // the table in force, by what operations took
  Nanos judge_at_, judge_pause_ = kJudgeAfter;
  bool woken_ = false;  // a class of sizes that was idle; looked at from next_wake_ on
  Nanos next_wake_;
  bool departed_ = false;                  // an engine of the group has left
  std::vector<std::uint16_t> ring_order_;  // in which rings are tried; empty: only in the group's
  bool order_due_ = false;                 // levels have changed since it was looked for
  double guessed_beta_ = 0;                // TableCosting::guessed_beta(), for the order; 0: there was none
  bool guess_is_old_ = false;              // the network has changed for sure since
  double codec_rate_ = 0;                  // of the median link when what codecs took began to count; 0: not known

  std::vector<std::byte> outgoing_;  // lent to a channel while it copies it
};

}  // namespace canarynet
