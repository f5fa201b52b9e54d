// engine/engine.h -- Canary's one engine: a single-threaded state machine that serves k local ranks.
//
// What: joins the job (control/), keeps a channel to every peer engine (transport/), runs operations (collectives/),
// bounds every wait, and turns failures into verdicts that reach all survivors.
// Drive it: poll(now) does bounded work and returns how much (0: nothing was there); call it when
// LaneFactory::poll_fd() is readable, when next_deadline() has come, and after submit(). It starts no thread, reads no
// clock, opens no socket, and makes no random choice of its own: all of that is handed in, so the daemon, the embedded
// library and the simulator run this very code.
// Threads: submit(), full(), ticket_id() and algorithm() from any; everything else from the one thread that holds the
// engine.
// Memory: what a command names is borrowed until its ticket is done. Pools are fixed at start; programs are
// compiled at the first use of a shape. Failures: as values, in tickets and join_status().
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/hashed_bag.h"
#include "base/mpsc_ring.h"
#include "base/settings.h"
#include "base/sole_user.h"
#include "base/status.h"
#include "collectives/codec_pick.h"
#include "control/membership.h"
#include "engine/eager_store.h"
#include "engine/flow/flow_table.h"
#include "engine/flow/mux.h"
#include "engine/greeter.h"
#include "engine/group.h"
#include "engine/knocker.h"
#include "engine/messages.h"
#include "engine/newcomer_flow.h"
#include "engine/partial.h"
#include "engine/peers.h"
#include "engine/silence_watch.h"
#include "port/command.h"
#include "port/id_table.h"
#include "port/ticket.h"
#include "transport/lane.h"

namespace canarynet {

struct EngineOptions {
  Settings settings;
  int world_size = 1;
  std::vector<int> local_ranks{0};          // ascending
  Address coordinator;                      // of world rank 0's engine
  std::vector<Address> coordinator_others;  // more addresses of it
  std::uint64_t join_token = 0;             // of the unique id, if there is one
  std::string host_id;
  std::string host_name;
  std::int64_t pid = 0;
  int cores = 0;                     // of the host; 0: unknown
  PulseSource pulse_of;              // may be empty
  std::size_t strangers_max = 1024;  // connections that have not said who they are
  std::uint64_t epoch_seed = 0;      // of groups' epochs, no secret; rank 0's engine gives it to the others
  std::uint64_t job_token = 0;       // a secret (base/secret.h); rank 0's engine gives it to the others
  std::uint32_t channel_records = 2048;
  std::uint32_t channel_copies = 256;
  // For the costs of plans: seconds to add a byte, and to post a message.
  double reduce_seconds = 0;
  double post_seconds = 0;
  // How fast a codec is here, measured when it first is a candidate; empty: as if it took no time.
  std::function<CodecSpeed(const CodecSpec&)> codec_speed;
  // Where counting begins, on all engines alike: for tests of what happens where 32 bits end.
  std::uint32_t first_operation = 1;
  std::uint64_t first_message = 1;
};

class Session;
struct PolicyPost;
struct SessionView;
namespace sync {
class WorkerSet;
}

class Engine final : public MembershipListener,
                     private MuxHost,
                     private MessageHost,
                     private SilenceHost,
                     private GreeterHost {
 public:
  // Alone on the lanes of `factory`, or beside an endpoint.
  Engine(const EngineOptions& options, LaneFactory& factory);
  Engine(EngineOptions options, std::shared_ptr<SharedRails> rails);
  ~Engine() override;

  Status start(Nanos now);
  std::size_t poll(Nanos now);
  // Its two halves, for whoever polls the lanes in between for an endpoint as well, under a DenormalGuard.
  void begin_poll(Nanos now);
  std::size_t end_poll(Nanos now);
  Nanos next_deadline() const;

  // Joined, and every peer that can be met was met. join_status() is an error once joining has failed for good.
  bool ready() const { return ready_; }
  const Status& join_status() const { return join_status_; }
  const Roster& roster() const { return *roster_; }
  // The group of all ranks, as a local rank sees it; nullptr before ready().
  GroupMember* world(int local_rank);

  // Every command comes in here. OK; what is wrong with the command; or CANARY_WOULD_BLOCK without a text: too many of
  // the member's operations wait for those before them, or the queue of its messages or that of the other commands is
  // full, which every poll() ends. Those pass what waits. Nobody forgets the member meanwhile.
  Status submit(const port::Command& command);
  // Says what is wrong with the command, and does not take it.
  Status check_call(const port::Command& command) const;
  // Whether the member's queue of operations is full.
  bool full(port::MemberId member) const;
  // Commands name the ticket by this id, from the first call until the ticket ends.
  port::TicketId ticket_id(OpTicket& ticket) {
    ticket.join_table(tickets_);
    return ticket.id();
  }
  // nullptr: it has been forgotten.
  GroupMember* member(port::MemberId id) const;
  // The planner of the member's last completed operation, a constant string; "" before the first.
  const char* algorithm(port::MemberId id) const;
  // What decides an operation of this size (operation_bytes()) that the member would enter next, and why: one sentence
  // or two for people. "": the member has been forgotten.
  std::string explain(port::MemberId id, Collective collective, std::uint64_t bytes) const;
  // Calls fn(group, collective, size class, ChoiceView) for all that the groups use, in the order of their numbers.
  template <typename Fn>
  void for_each_choice(Fn fn) const {
    for (const auto& g : groups_) {
      if (g->local.empty() || wire::is_partial(g->flow)) continue;
      g->use.for_each_used([&](Collective collective, int size_class, const ChoiceUse::Cell& cell) {
        const std::uint64_t usual = cell.bytes / cell.operations;
        fn(*g, collective, size_class, choice_view(*g, g->local.front()->entered + 1, collective, usual, cell.codec));
      });
    }
  }
  // Calls fn(group, CodecUse::Cell, row or nullptr, identity of the table) for all codecs that groups let be chosen.
  template <typename Fn>
  void for_each_codec_choice(Fn fn) const {
    for (const auto& g : groups_) {
      if (g->local.empty() || wire::is_partial(g->flow)) continue;
      const MeasuredTable* const table =
          g->decisions ? &g->decisions->table_for(g->local.front()->entered + 1) : nullptr;
      for (const auto& cell : g->codec_use.cells()) {
        fn(*g, *cell, table != nullptr ? table->find_codec(cell->asked, cell->bytes) : nullptr,
           table != nullptr ? table->identity() : 0);
      }
    }
  }
  // What a member's session knows of itself; false: there is none of that number.
  bool read_session(port::MemberId id, std::uint64_t number, SessionView* view) const;
  // The row of its index for an iteration and a colayer; nullptr: there is no such row.
  const sync::WorkerSet* session_row(port::MemberId id, std::uint64_t number, std::int64_t iteration,
                                     int colayer) const;
  // What its codec has left out of a colayer on this rank, and what later rounds take along; empty: nothing.
  std::span<const float> session_left_out(port::MemberId id, std::uint64_t number, int colayer) const;
  // The result of the colayer's last committed round, and that round's number (0: there is none), for tests that
  // compare logs. It is valid until the next poll.
  std::span<const float> session_last(port::MemberId id, std::uint64_t number, int colayer, std::uint32_t* round) const;
  // Of the member's group, by rank: numbers of hosts, counted from 0 in order of appearance, and who is gone. False: it
  // has been forgotten.
  bool look_around(port::MemberId id, std::vector<std::uint64_t>* hosts, std::vector<bool>* gone) const;
  // True while operations or messages of a member are not done, those included that the engine has not seen.
  bool pending(port::MemberId id);
  // Ends a local member's part in its group; false: operations or messages are pending. When the last local member has
  // gone, so has the group.
  bool forget(port::MemberId id);

  // A local rank calls no more while others stay: groups that have it wait for it no longer than for an engine that
  // left.
  void retire(int local_rank);

  // Says farewell: everything sent is acked, lanes and control say goodbye. Poll until left() (bounded by the caller).
  void leave(Nanos now);
  bool left() const { return left_; }
  // Memory ran out in a call, which may have stopped anywhere: all channels end at once, and nothing is read from or
  // written to anybody's buffers. Control connections end with the engine. Not to be driven afterwards; tickets stay as
  // they are.
  void abandon() noexcept;

  // Acks that wait for company go out now: the driving thread is about to stop driving. See Channel::flush_acks().
  void flush_acks(Nanos now, bool all);
  // Before a poll(): sends what was submitted at once, instead of after a look for arrivals.
  void hurry(Nanos now);

  // Counts the whole job's, after it has formed.
  int ranks_on_this_host() const;
  // True while operations or messages are in flight.
  bool busy() const { return operations_in_flight_ != 0 || messages_.pending() != 0; }
  RailStats rail_stats(int rail) const { return everybody_.rail_stats(rail); }
  std::span<const Rail> rails() const { return factory_.rails(); }
  const std::string& host_name() const { return options_.host_name; }
  // Every path to a peer, as LinkView.
  template <typename Fn>
  void for_each_link(Fn fn) const {
    everybody_.for_each_link(fn);
  }
  struct Counters {
    std::uint64_t peers = 0;  // engines that this one has links to
    std::uint64_t operations_in_flight = 0;
    std::uint64_t operations = 0;  // that ended, failed ones included
    std::uint64_t operation_failures = 0;
    std::uint64_t codec_value_bytes = 0;  // that codecs have encoded for complete operations
    std::uint64_t codec_encoded_bytes = 0;
    std::uint64_t null_pieces = 0;       // sent to other engines, each once
    std::uint64_t null_value_bytes = 0;  // of the zeros that did not travel, as values
    double codec_gain = 0;      // of tensors with error feedback: share of their energy that was sent, 0 without any;
    double codec_residual = 0;  // norm of what is left out of them now, of their own norm
  };
  Counters counters() const;
  const MessageCounters& message_counters() const { return messages_.counters(); }
  std::uint64_t messages_in_flight() const { return messages_.pending(); }
  std::uint64_t kernel_tx_bytes(int rail) const { return factory_.kernel_tx_bytes(rail); }

  // For flows of other kinds: numbers that no group has, and the way to a peer, which is opened by that (nullptr: no
  // rail leads there, or the join is not that far).
  FlowTable& flows() { return flows_; }
  Mux* mux(std::uint32_t engine) {
    return engine < peers_.size() && engine != my_engine_ && open(peers_[engine]) ? peers_[engine].mux.get() : nullptr;
  }

  // MembershipListener
  void on_joined(std::shared_ptr<const Roster> roster) override;
  void on_join_failed(const Status& why) override;
  void on_group(int local_rank, std::uint64_t cookie, std::uint32_t flow) override;
  void on_group_failed(int local_rank, std::uint64_t cookie, const Status& why) override;
  void on_engine_died(std::uint32_t engine, const std::string& why) override;
  void on_engine_ended(std::uint32_t engine, const std::string& why) override;
  void on_engine_left(std::uint32_t engine, const std::vector<LastWord>& words) override;
  void on_connect_wanted(std::uint32_t engine) override;
  void on_entry_question(GroupEpoch group) override;
  void on_entered(const Entered& entered) override;
  void on_verdict(const Verdict& verdict) override;
  void on_coordinator(std::uint32_t engine) override;
  void on_coordinator_lost(const Status& why) override;
  bool stands(std::uint32_t engine) const override;
  void on_policy_reply(const PolicyReply& reply) override;

 private:
  // GreeterHost
  bool expects(const wire::HelloPayload& hello) const override {
    return hello.purpose == wire::kHelloControl || hello.purpose == wire::kHelloChannel;
  }
  void on_hello(std::unique_ptr<Lane>& lane, const wire::Header& header, const wire::HelloPayload& hello) override;

  // Bytes parked at a peer for an operation that is done here (small pieces are copied, so a root runs ahead): they
  // stay charged until the peer's rank enters it.
  struct EagerDebt {
    std::uint32_t flow = 0;
    std::uint32_t epoch = 0;
    std::uint32_t op = 0;
    std::uint16_t from = 0;  // ranks in the group
    std::uint16_t to = 0;
    std::uint32_t bytes = 0;
    std::uint64_t hash() const {
      return mixed_bits(std::uint64_t{flow} << 32 | epoch) ^ (std::uint64_t{from} << 48 | std::uint64_t{to} << 32 | op);
    }
  };
  static constexpr std::uint32_t kWorldFlow = 1;  // flows handed out by the coordinator come behind it

  friend class DecisionFlow;
  friend class OperationFlow;
  friend class GroupMessageFlow;
  friend class NewcomerFlow;

  struct EnginePeer : Peer {
    std::unique_ptr<EagerStore> eager;
    std::uint64_t eager_used = 0;  // charged for what we sent it and it was not ready for
    PartnerList poor;              // what waits for room in the budget
    // The part of it whose operation is done here; bounded by the budget, never grows. Null: there never was a channel.
    std::unique_ptr<HashedBag<EagerDebt>> debts;
    Status why_gone;                     // what a group that needs it is told
    Nanos complained_at = Nanos::max();  // since when some group has waited for a lane to it
    Nanos unheard_since = Nanos::max();  // since when it is heard and seems to have heard nothing for too long
    std::uint32_t beat_turn = 0;         // whose turn it is in the heartbeat's group fields
    bool awaited = false;                // the join waits until a lane to it is up
    Nanos next_ask = Nanos::max();       // it dials, and is asked to over control until a lane is up
  };
  // The coordinator says that this process is no more. Lanes are to agree.
  struct Doubt {
    std::uint32_t engine = 0;
    std::string why;
  };
  struct StraySignature {
    std::uint32_t flow = 0;
    std::uint32_t epoch = 0;
    std::uint16_t source = 0;
    std::uint16_t destination = 0;
    std::uint32_t engine = 0;  // that said it
    std::uint32_t op = 0;
    wire::SignaturePayload payload;
    Nanos came{};
  };
  struct PendingGroup {
    std::uint64_t cookie = 0;
    OpTicket* ticket = nullptr;
    std::vector<int> members;
    // An error: its caller has been told, and the others hear it when the coordinator forms the group all the same.
    Status given_up = {};
  };

  // groups (groups.cc)
  Group& add_group(std::uint32_t flow, std::vector<int> members, GroupEpoch parent = {}, std::uint64_t number = 0,
                   bool of_session = false);
  std::vector<std::uint16_t> ring_order_of(const Group& group, GroupEpoch parent);
  GroupPeer* group_peer(Group& group, std::uint32_t engine);
  void dismiss(GroupMember& member);
  void add_member(Group& group, int rank);
  // Where a group with that number is, or would go.
  auto place_of(std::uint32_t flow) {
    return std::lower_bound(groups_.begin(), groups_.end(), flow, [](const auto& g, auto f) { return g->flow < f; });
  }
  Group* find_group(std::uint32_t flow);
  // Whether the frame's group, of unknown number, is over: nobody can be about to join it here.
  bool over(const wire::Header& header) const;
  void admit_strays(Group& group);
  void drop_early(Group& group);
  void drop_early_of_unknown_groups();
  void close_group(Group& group);

  // commands (commands.cc)
  // There is something for take_commands() or enter_waiting(). Listed members are few where nothing waits.
  bool called() const {
    return called_.load(std::memory_order_relaxed) != nullptr || commands_.ready() ||
           std::any_of(waiting_.begin(), waiting_.end(), [](const GroupMember* m) { return m->called(); });
  }
  void take_commands();
  bool call(GroupMember& member, const port::Command& command);
  void note_called(GroupMember& member);
  void obey(const port::Command& command);
  void list_called();
  void unlist_idle();
  static bool unlist(GroupMember& member);
  void look_at(WaitingOperation& waiting) const;
  void enter_waiting();
  bool has_room(const GroupMember& member) const;
  bool enter_next(GroupMember& member);
  void end_waiting(GroupMember& member);
  bool check_waiting(Group& group, GroupMember& member, Nanos now);
  void set_deadline(GroupMember& member, port::TicketId ticket, Nanos deadline);

  // partial all-reduces (partial_operations.cc)
  void obey_partial(GroupMember* caller, const port::Command& command);
  Status begin_partial(const GroupMember& caller, GroupEpoch name, std::uint64_t number, std::vector<int> members,
                       bool weighted, const PartialCall& what);
  Group& add_partial(const Group& parent, GroupEpoch name, std::uint64_t number, std::vector<int> members,
                     bool weighted);
  void enter_partial(Group& group, PartialCall& call);
  void settle_partials();
  void settle_partial(Group& group, PartialCall& call);
  void close_partial(Group& group);
  void end_unknown_partial(GroupEpoch name, const Status& why);
  void expire_strays(Nanos now);
  bool lists_agree(Group& group, std::uint32_t from, const wire::SignaturePayload& theirs);
  bool contradicts(const StraySignature& stray, Group& group);
  bool contradicts_past(const StraySignature& stray);
  void end_partial_of(const StraySignature& stray, Verdict verdict);
  bool contradicts_any(const StraySignature& stray);
  bool refuse_session_stray(const StraySignature& stray);
  bool says_who_it_is(std::uint32_t from, const wire::SignaturePayload& theirs) const;
  void end_partials_of(const Group& parent, const Verdict& verdict);
  bool exchanges_in_partial(const GroupMember& member, std::uint64_t tensor) const;
  ErrorFeedback& feedback_of(GroupMember& member);
  bool partial_pending(const GroupMember& member) const;
  void set_partial_deadline(port::TicketId ticket, Nanos deadline);

  // policies that ask (policy_operations.cc)
  void obey_policy(GroupMember* caller, const port::Command& command);
  Status open_policy(const GroupMember& caller, const port::Command& command);
  PolicyPost* find_post(port::MemberId caller, std::uint64_t number) const;
  bool has_post(const GroupMember& member) const;
  void say(PolicyPost& post, PolicyWord word);
  void settle_post(PolicyPost& post);
  void leave_policy(PolicyPost& post);
  void close_policy(PolicyPost& post);
  void end_posts(const Status& why, const Group* of = nullptr);
  void end_policies(const Status& why);
  void resume(PolicyPost& post);
  std::string name_of_coordinator() const;
  void retire_posts(int world_rank);
  void check_posts(Nanos now);

  // sessions (session_operations.cc)
  void obey_session(GroupMember* caller, const port::Command& command);
  void open_session(const GroupMember& caller, const port::Command& command, OpTicket* ticket);
  Status add_session_groups(Session& session);
  Status add_session_group(Session& session, std::size_t place);
  void release_session_group(GroupMember** place);
  Session* find_session(port::MemberId caller, std::uint64_t number) const;
  bool has_session(const GroupMember& member) const;
  void hear_of_round(const GroupMember& member, int source, std::uint32_t operation);
  void settle_sessions();
  bool settle_session(Session& session);
  void open_rounds(Session& session);
  Status check_session_codecs(const Session& session, const Group& parent) const;
  void meet_in_session(Session& session, OpTicket* ticket);
  void end_session(Session& session, const Verdict& verdict);
  void close_session(Session& session);
  void check_sessions(Nanos now);
  void end_sessions_of(const Group& parent, const Verdict& verdict);
  void set_session_deadline(port::TicketId ticket, Nanos deadline);
  void check_step_deadline(Session& session);

  // what becomes of them after deaths (session_deaths.cc)
  static bool is_death(canary_status code);
  bool regroup_session(Session& session, const Status& why);
  bool note_deaths(Session& session, std::span<const int> named);
  void end_with_siblings(const Session& session);
  static Verdict reason_of(const Session& session, int world_rank);
  void check_who_left(const Session& session, Nanos now);
  bool recover_session(Session& session);
  bool resume_session(Session& session);
  void end_session_here(Session& session, const Status& why);
  bool keeps_answering(const Session& session) const;
  void keep_closed_session(Session& session);
  void drop_old_sessions(Nanos now);
  void drop_session(Session& session);
  void drop_sessions_of(port::MemberId caller);
  void refuse_session_strays();

  // MuxHost
  void on_heartbeat(Mux& from, const wire::Header& header) override;
  void fill_heartbeat(Mux& to, wire::Header* header) override;
  void on_abort(Mux& from, const wire::Header& header, const wire::AbortFrame& abort) override;
  void on_path_event(Mux& peer, const std::string& what) override;

  // operations (operations.cc, operation_flow.cc)
  void enter(GroupMember& member, const CalledOperation& called);
  PlanRequest plan_request(const Group& group) const;
  // Of the group's operation of that number.
  std::string explain_planner(const GroupMember& member, Collective collective, std::uint64_t bytes) const;
  std::string explain_carrier(const GroupMember& member, const ChoiceUse::Cell& cell) const;
  std::string planner_reasons(const GroupMember& member, const ChoiceView& view, bool measured) const;
  ChoiceView choice_view(const Group& group, std::uint32_t operation, Collective collective, std::uint64_t bytes,
                         std::uint32_t codec = 0) const;
  Result<ProgramEntry*> program_for(GroupMember& member, const OpRequest& request);
  Result<Choice> choose(GroupMember& member, const PlanRequest& request, const MeasuredTable& table,
                        std::uint32_t carries, ProgramEntry* known_static, ChoiceUse::Cell* use);
  bool held(GroupMember& member);
  // operations with a codec (coded_operations.cc)
  void obey_feedback(GroupMember* member, const port::Command& command);
  Status serve_feedback(ErrorFeedback& feedback, const port::Command& command) const;
  Status tell_roots(const GroupMember& member, const port::Command& command) const;
  // all-reduces by artopk, power and svd (chained_operations.cc)
  static bool is_chain(const GroupMember& member, const OpRequest& request);
  void begin_chain(GroupMember& member, const CalledOperation& called);
  Status prepare_chain(GroupMember& member, const CalledOperation& called, const CodecSpec& spec,
                       std::size_t candidate);
  void enter_phase(GroupMember& member);
  void enter_phases();
  void note_chain_time(GroupMember& member);
  bool go_on(GroupMember& member, std::uint32_t number, Nanos entered, Status* status);
  static Status check_codec(const port::Command& command);
  static Status check_codec_of_partial(const port::Command& all_reduce);
  static CodecSpec codec_of(const GroupMember& member, const OpRequest& request, const MeasuredTable& table);
  CodecSpeed codec_speed(const CodecSpec& spec);
  static std::size_t chosen_candidate(const GroupMember& member, const OpRequest& request, std::uint32_t number);
  CodecUse::Cell* cell_of_asked(GroupMember& member, const OpRequest& request);
  void note_asked(GroupMember& member, Operation& operation);
  static bool tells_time_of_call(const GroupMember& member, const Operation& operation);
  void note_time(GroupMember& member, const Operation& operation);
  void count_codecs(Counters* counters) const;
  bool measures_plan(const GroupMember& member, const OpRequest& request) const;
  ChoiceUse::Cell* coded_use(GroupMember& member, const OpRequest& request, const CodecSpec& codec,
                             std::uint32_t number, const PlanRequest& plan);
  Status begin_feedback(GroupMember& member, const CalledOperation& called, const Program& program,
                        ErrorFeedback::Exchange* begun);
  void bind(GroupMember& member, Operation& op, const ErrorFeedback::Exchange& feedback, bool null_pieces) const;
  Status end_coded(GroupMember& member, const Operation& op);
  bool kill_of_fault(Run& run);
  void decide(Nanos now);
  std::unique_ptr<Run> take_run(ProgramEntry* entry, Group& group, canary_priority priority);
  void return_run(Operation& op);
  Run* run_at(std::uint32_t index) { return index < runs_.size() ? runs_[index] : nullptr; }
  void wake_partners(Run& run);
  void enqueue(RunPartner& partner);
  void dequeue(RunPartner& partner);
  void count_waiting(RunPartner& partner);
  void charge_less(EnginePeer& peer, std::uint32_t bytes);
  void piece_arrived(Run& run, std::uint32_t task, Mux& from, const wire::Header& header,
                     std::span<const std::byte> payload, std::optional<std::uint32_t> crc);
  Landing park(std::uint32_t from, const wire::Header& header);
  bool park_whole(std::uint32_t from, const wire::Header& header, std::span<const std::byte> payload);
  void unpark(std::uint32_t from, const wire::Header& header);
  static void tell_entered(Channel& channel, const Group& group, Nanos now);
  static std::vector<LastWord> words_of(const Group& group);
  std::vector<LastWord> last_words() const;
  void begin_cycle(Nanos now);
  std::size_t end_cycle(Nanos now);
  std::size_t send(Nanos now);
  std::size_t settle_local();
  bool pump_local(std::uint64_t* budget);
  void look_at(Run& run);
  static bool may_finish(const Run& run);
  bool finish_if_complete(Run& run);
  void finish(GroupMember& member, Operation& op, Status status);
  void settle_debt(EnginePeer& peer, const wire::Header& signature);
  void mark_ready(Operation& op, std::uint32_t partner);
  bool waits_for_its_piece(const Operation& op, const RunPartner& partner) const;
  void announce(GroupMember& member, std::optional<std::uint32_t> to = {});
  void drain_eager(GroupMember& member, Operation& op);
  bool admit_signature(GroupMember& member, int source, std::uint32_t number, const wire::SignaturePayload& theirs);
  bool agrees(GroupMember& member, const Operation& op, int source, const wire::SignaturePayload& theirs);
  bool compare(GroupMember& member, std::uint32_t number, const wire::SignaturePayload& mine,
               const wire::SignaturePayload& theirs);

  // messages (group_messages.cc)
  void post_messages();
  void post_messages(GroupMember& member, int limit);
  void post_message(GroupMember& member, const port::Command& command);
  MessageEnd& message_end(GroupMember& member, int partner);
  void on_mismatch(MessageEnd& end, const Status& why, bool told) override;
  Status failure_of(const MessageRequest& request, const Status& why, Nanos now) override;
  void end_messages(Group& group);
  void retire_messages(GroupMember& member);
  void check_messages(Group& group, GroupMember& member, Nanos now);

  // failures (failures.cc, silence.cc)
  void housekeeping(Nanos now);
  void move_clocks(Nanos missed);
  void check_limits(Group& group, GroupMember& member, Nanos now);
  void kill(Group& group, const Verdict& verdict, bool flood);
  void spread(const Verdict& verdict, std::span<const std::uint32_t> engines);
  void kill_if_lost(Group& group, const char* when = "");
  void kill_groups_of(std::uint32_t engine, std::uint32_t culprit, canary_status code, const std::string& why,
                      const std::vector<GroupEpoch>* only = nullptr);
  std::optional<Word> word_over_control(const Peer& peer) const override;
  Names names_of(std::span<const Peer* const> peers) const override;
  void meet(EnginePeer& peer);
  bool connects_at_join(std::uint32_t engine) const;
  bool open(EnginePeer& peer);
  void ask_to_be_dialled(Nanos now);
  void knock(const EnginePeer& peer, Nanos now);
  bool held(const Group& group) const;
  void hold(Group& group, Nanos span);
  // By then everything that a departed engine had sent is known, where all are heard.
  Nanos departure_grace() const { return std::min(options_.settings.silence_limit, 1_s); }
  int host_of_engine(std::uint32_t engine) const {
    return host_of_[static_cast<std::size_t>(roster_->engines[engine].ranks.front())];
  }
  bool inquired(Group& group, Nanos since);
  bool hears_nothing(EnginePeer& p, Nanos now) const;
  void tell_given_up(std::uint32_t engine, std::uint32_t culprit, const std::string& why);
  std::vector<GroupEpoch> groups_waiting_for(std::uint32_t engine) const;
  std::string rank_name(int world_rank) const;
  std::string ranks_text(std::uint32_t engine) const;
  void check_silence(Nanos now);
  bool take_ended(std::uint32_t engine, const std::string& why);
  void lose(std::uint32_t engine, const Status& why);
  void give_up_groups(const Status& why = {});
  Status loss(std::uint32_t engine, canary_status code, const std::string& text) const;
  // Why a group of these ranks can't be formed any more; OK where it can.
  Status group_hope(const std::vector<int>& members) const;
  void check_ready();

  Channel* channel_to(std::uint32_t engine) { return engine < peers_.size() ? peers_[engine].channel.get() : nullptr; }

  EngineOptions options_;
  std::shared_ptr<SharedRails> rails_;
  LaneFactory& factory_;
  DecisionTable decisions_;  // CANARY_ALGO
  std::uint64_t codec_value_bytes_ = 0, codec_encoded_bytes_ = 0;
  std::uint64_t null_pieces_ = 0, null_value_bytes_ = 0;
  std::vector<std::pair<CodecSpec, CodecSpeed>> codec_speeds_;  // that were asked for
  std::vector<std::unique_ptr<Session>> sessions_;              // before the groups, which are lent their buffers
  std::vector<std::unique_ptr<PolicyPost>> posts_;
  std::vector<std::unique_ptr<PolicyPost>> closed_posts_;  // the last ones; the others may run theirs on
  Status policies_over_;                                   // why no question is answered here any more
  bool sessions_due_ = false;                              // something of theirs may have happened
  Nanos sessions_deadline_ = Nanos::max();                 // when a gradient has waited for long enough
  Greeter& greeter_;
  Knocker knocker_{factory_};
  std::unique_ptr<Membership> membership_;
  std::shared_ptr<const Roster> roster_ = std::make_shared<Roster>();  // shared with membership_
  std::uint32_t my_engine_ = 0;
  std::shared_ptr<const Reachability> reach_;  // of the world
  std::vector<int> host_of_;                   // by world rank: the first engine with its host id
  FlowTable flows_;                            // of groups_; before the muxes that look there
  NewcomerFlow newcomers_{*this};
  Peers everybody_;  // of peers_, but this very engine
  SilenceWatch watch_;
  std::vector<EnginePeer> peers_;                      // by engine number
  std::vector<Missed> missed_;                         // as last reported
  std::vector<std::uint32_t> asking_;                  // engines whose next_ask is set
  std::vector<std::unique_ptr<Group>> groups_;         // ascending flows; the world first
  std::vector<std::unique_ptr<Group>> closed_groups_;  // until the next cycle
  std::size_t members_ = 0;                            // of groups_
  std::vector<Group*> partials_;                       // of groups_: of partial all-reduces under way
  PastPartials past_partials_;
  bool partials_due_ = false;         // some of their operations may have ended
  std::vector<GroupMember*> active_;  // members with operations in flight, in order of becoming active
  std::vector<Run*> runs_;            // by Run::index
  // Groups that were closed lately: others may still ask what was entered there.
  struct ClosedGroup {
    Entered entered;
    std::vector<LastWord> words;
  };
  std::vector<ClosedGroup> past_groups_;
  std::size_t next_past_group_ = 0;
  std::vector<PendingGroup> pending_groups_;
  std::vector<StraySignature> strays_;  // of groups whose creation has not reached us yet; bounded
  port::Regions regions_;
  std::shared_ptr<TicketTable> tickets_ = std::make_shared<TicketTable>();
  port::IdTable<GroupMember> member_ids_;
  MpscRing<port::Command> commands_;           // all but operations and messages, which wait with their members
  std::atomic<GroupMember*> called_{nullptr};  // members that were called since the last look
  Messages messages_;
  std::vector<GroupMember*> waiting_;     // members with operations that wait for room, or were called lately
  std::vector<GroupMember*> chains_due_;  // whose chain's next phase is due
  bool commands_left_ = false;            // the cycle's share was taken, not all
  bool messages_left_ = false;            // likewise

  Nanos now_;
  std::vector<Doubt> doubtful_;  // one for an engine
  Nanos next_housekeeping_;
  Nanos decisions_due_ = Nanos::max();  // when a group's table needs attention before the next housekeeping
  Nanos looked_at_;                     // the last housekeeping
  Status join_status_;
  std::uint64_t next_cookie_ = 1;
  SoleUser user_;
  std::uint32_t operations_in_flight_ = 0;
  std::uint64_t operations_entered_ = 0;
  std::uint64_t operations_ended_ = 0;
  std::uint64_t operations_failed_ = 0;
  wire::SignaturePayload outgoing_signature_;  // lent to a channel while it copies it
  bool joined_ = false;
  bool ready_ = false;
  bool leaving_ = false;
  bool left_ = false;
  bool abandoned_ = false;
  Nanos farewell_due_;
  bool farewell_said_ = false;
  bool local_dirty_ = false;               // there is something to pass between local ranks, or to finish
  std::size_t neighbourly_ = 0;            // operations in flight that exchange with ranks of this engine
  std::vector<std::uint32_t> to_look_at_;  // runs, by Run::index, that may be complete
  std::size_t local_turn_ = 0;             // whose turn it is to pass pieces to its neighbours
};

}  // namespace canarynet
