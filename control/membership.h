// control/membership.h -- who is in the job: joining, groups' flow numbers, deaths and aborts, over control lanes.
//
// What: the engine of world rank 0 also is the *coordinator*: it listens, collects one JOIN per engine, checks that all
// ranks are there exactly once and that must-agree settings are equal, and sends everybody the roster. The connection
// of every other engine to it stays open: its end (FIN, RST) without a LEAVE proves that the process died; silence
// proves nothing: it is dialled again, over any of the coordinator's addresses. So is one on which something came
// damaged: the side that can't read it any more says RETRACT on it and keeps it open until another has taken its place.
// Once the coordinator has died or left, the next engine in the roster that lives coordinates: the others dial it and
// tell it what it has to know (docs/decisions/0056-the-next-engine-coordinates.md).
// Units: ranks are world ranks unless said otherwise. Memory: own; grows only while joining and creating groups.
// Thread: the engine's owner. Runs by poll(); reads no clock, opens no socket (LaneFactory).
// Failures: a failed join comes as on_join_failed with the same sentence on every rank that had connected. Where the
// ranks meet by a unique id, a member that does not fit (version, world size, settings, a rank twice) fails the join.
// Where they meet by an address anybody may come: one that does not fit is turned away with the reason and the others
// are waited for; if they don't come, the failure tells that reason.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/settings.h"
#include "base/status.h"
#include "control/policy_word.h"
#include "topology/rails.h"
#include "transport/lane.h"

namespace canarynet {

// One engine of the job as everybody knows it after the join.
struct EngineInfo {
  std::uint32_t engine = 0;  // = position in the roster: ascending order of the lowest rank served
  std::vector<int> ranks;    // world ranks it serves, ascending
  std::string host_id;       // boot id + network namespace, or CANARY_HOST_ID
  std::string host_name;     // for messages
  std::int64_t pid = 0;
  bool caller_driven = false;  // no thread of its own: it is silent while its process does not call
  int cores = 0;               // of its host; 0: unknown
  Address control;             // where it listens for the others, should it come to coordinate; port 0: it can't
  std::vector<Rail> rails;     // with listening ports
};

struct Roster {
  std::uint64_t job = 0;         // random token: lanes of other jobs are turned away
  std::uint64_t epoch_seed = 0;  // what groups' first epochs are drawn from; no secret
  int world_size = 0;
  std::vector<EngineInfo> engines;
  std::vector<int> engine_of;                  // [rank] → engine
  Bytes piece_bytes;                           // the first rank's setting, used by all
  RailPairing pairing = RailPairing::kSubnet;  // by which the engines' rails meet: all come to the same one

  // The rails of rank r's host.
  std::vector<std::vector<Rail>> rails_of_ranks() const {
    std::vector<std::vector<Rail>> out;
    for (const int e : engine_of) out.push_back(engines[static_cast<std::size_t>(e)].rails);
    return out;
  }
};

// The verdict that ends a group's epoch, as it floods.
struct Verdict {
  canary_status code = CANARY_ABORTED;
  int rank = -1;  // culprit, world rank; -1 unknown
  std::int64_t op = -1;
  std::uint32_t flow = 0;  // 0: every group that has the rank
  std::uint32_t epoch = 0;
  std::uint32_t reporter = 0;  // engine that saw it first
  Nanos elapsed;
  std::string text;
};

// A group's epoch.
struct GroupEpoch {
  std::uint32_t flow = 0;
  std::uint32_t epoch = 0;
  auto operator<=>(const GroupEpoch&) const = default;
};

// Knowledge of the operations of a group that each rank has entered.
struct Entered {
  GroupEpoch group;
  // Number of the last operation, by rank in the group; empty: the group is not known.
  std::vector<std::uint32_t> by_rank;
  std::vector<std::uint32_t> heard;  // of everybody's answers together: the engines that know the group
};

// The last operation of a group that a rank of an engine that leaves had entered.
struct LastWord {
  GroupEpoch group;
  std::uint32_t rank = 0;  // in the group
  std::uint32_t op = 0;
  bool operator==(const LastWord&) const = default;
};

// An engine that no lane has brought a word from for a while, and the groups whose operations can't go on without one.
// `deaf`: it is heard, but it hears nothing from here, and the groups wait for its acknowledgements.
struct Missed {
  std::uint32_t engine = 0;
  std::vector<GroupEpoch> waiting;
  Obstacle obstacle = Obstacle::kNone;
  std::string why;  // ": " and what the obstacle is
  bool deaf = false;
  bool operator==(const Missed&) const = default;
};

class MembershipListener {
 public:
  virtual ~MembershipListener() = default;
  // The roster does not change any more; whoever keeps it shares it.
  virtual void on_joined(std::shared_ptr<const Roster> roster) = 0;
  virtual void on_join_failed(const Status& why) = 0;
  // Every member of `members` (world ranks, the caller's order) asked for it: `flow` is its number. `local_rank` asked
  // under `cookie`.
  virtual void on_group(int local_rank, std::uint64_t cookie, std::uint32_t flow) = 0;
  virtual void on_group_failed(int local_rank, std::uint64_t cookie, const Status& why) = 0;
  // Proof: the engine's control connection ended without LEAVE (or the coordinator said so). `why` e.g. "control
  // connection closed".
  virtual void on_engine_died(std::uint32_t engine, const std::string& why) = 0;
  // Likewise, of one that may have left: with nobody to coordinate just then, its LEAVE would have reached no one. Its
  // farewell on lanes tells.
  virtual void on_engine_ended(std::uint32_t engine, const std::string& why) = 0;
  // The engine left on purpose (finalize), with these words.
  virtual void on_engine_left(std::uint32_t engine, const std::vector<LastWord>& words) = 0;
  // Somebody asks what is known here of the operations that ranks have entered: tell_entered() answers, at once.
  virtual void on_entry_question(GroupEpoch group) = 0;
  // The knowledge of all engines together: somebody, perhaps this engine, had asked.
  virtual void on_entered(const Entered& entered) = 0;
  // That engine wants a channel to this one, whose part it is to dial.
  virtual void on_connect_wanted(std::uint32_t engine) = 0;
  // An abort came over control.
  virtual void on_verdict(const Verdict& verdict) = 0;
  // To a local rank's words about a policy that asks.
  virtual void on_policy_reply(const PolicyReply& reply) = 0;
  // From now on that engine coordinates, perhaps this one. It knows nothing of the policies that ask: before this
  // returns, say() has to tell it of them (PolicyWord::Kind::kResume).
  virtual void on_coordinator(std::uint32_t engine) = 0;
  // Nobody coordinates any more: no engine is left that could.
  virtual void on_coordinator_lost(const Status& why) = 0;
  // Whether a lane to that engine stands: its process lives then, whatever refuses control connections to it.
  virtual bool stands(std::uint32_t engine) const = 0;
};

struct MembershipOptions {
  Address coordinator;  // where world rank 0's engine listens (its own listening address if it serves rank 0)
  std::vector<Address> coordinator_others;  // more addresses of it, tried in turn until one answers
  std::uint64_t join_token = 0;             // of the unique id that brought the ranks together; 0: they came by address
  int world_size = 1;
  std::vector<int> local_ranks;  // served by this engine, ascending
  std::string host_id;
  std::string host_name;
  std::int64_t pid = 0;
  bool caller_driven = false;
  int cores = 0;
  Nanos join_timeout;
  Nanos heartbeat_interval;
  Nanos entry_limit;  // for groups whose other members never ask
  Bytes piece_bytes;
  RailPairing pairing = RailPairing::kAuto;  // as asked; it must agree
  std::vector<std::string> must_agree;       // Settings::must_agree()
  std::size_t strangers_max = 1024;  // rank 0: connections that have not said who they are; the oldest make room
  std::uint64_t epoch_seed =
      0;  // rank 0's: of groups' epochs. Epochs stand in errors and logs: nothing secret may be told by them
  std::uint64_t job_token = 0;  // rank 0's: a secret (base/secret.h), by which lanes of this job know each other
};

class Membership {
 public:
  virtual ~Membership() = default;
  // Starts: dials or listens. on_joined / on_join_failed follow from poll(). world_size 1 joins at once, without a
  // socket.
  virtual Status start(Nanos now) = 0;
  virtual std::size_t poll(Nanos now) = 0;
  virtual Nanos next_deadline() const = 0;
  // When anything was last heard from that engine over control, directly (coordinator's view of all, others' of the
  // coordinator) or by the coordinator's heartbeat, which carries the engines it hears. Nanos{0} = never.
  virtual Nanos last_heard(std::uint32_t engine) const = 0;
  // Likewise, but no later than it was: what a heartbeat of the coordinator tells may be as old as the one before.
  virtual Nanos surely_heard(std::uint32_t engine) const = 0;
  virtual bool joined() const = 0;
  // The engine that coordinates or, while it is sought, that is to. The last one, where none is left.
  virtual std::uint32_t coordinator() const = 0;
  // Collective among the members only. The same list in the same order on every member; the k-th request of a list on
  // one rank meets the k-th on the others. A list that some of its ranks don't ask for fails by entry_limit, naming
  // them, and the other order where one of them asked for the same ranks in another.
  virtual void request_group(Nanos now, int local_rank, std::vector<int> members, std::uint64_t cookie) = 0;
  // Spreads a verdict to all engines over control (through the coordinator). Idempotent.
  virtual void flood(const Verdict& verdict) = 0;
  // Everybody that this engine misses now; takes the place of the report before. The coordinator, who knows whom the
  // others miss, answers with a verdict (on_verdict) that names the engine at fault, if some group waits.
  virtual void report_missed(Nanos now, std::vector<Missed> missed) = 0;
  // Asks all engines what they know of the group; on_entered() follows, unless the coordinator is gone. And answers
  // such a question.
  virtual void ask_entered(Nanos now, GroupEpoch group) = 0;
  virtual void tell_entered(Nanos now, const Entered& entered) = 0;
  // Asks that engine to connect to this one. May be lost, with the connection to the coordinator or with the
  // coordinator: whoever still waits asks again.
  virtual void ask_to_connect(Nanos now, std::uint32_t engine) = 0;
  // A local rank's word to the coordinator of a policy. It gets there once, unless that one is gone; replies come
  // as on_policy_reply(), perhaps more than once.
  virtual void say(Nanos now, PolicyWord word) = 0;
  // This engine has given that one up for its silence. Where this one coordinates, policies go on without its workers.
  virtual void give_up_workers(Nanos now, std::uint32_t engine) = 0;
  // Says LEAVE; nothing after it is a death. The others hear what its ranks had entered: an engine that had no channel
  // to it knows by this alone. The coordinator keeps serving until poll() says `finished` or it is
  // destroyed.
  virtual void leave(Nanos now, std::vector<LastWord> words) = 0;
  // Closes every connection without a word, so that the others learn of this engine's end at once; only
  // next_deadline() may be called from now on. Outside of callbacks.
  virtual void abandon() noexcept = 0;
  // Frames of control lanes that a factory accepted or dialled are routed here by their Hello (purpose kHelloControl):
  // the engine's acceptor hands over the lane with the Hello it read.
  virtual void adopt(std::unique_ptr<Lane>&& lane, const wire::Header& header, const wire::HelloPayload& hello) = 0;
};

std::unique_ptr<Membership> make_membership(MembershipOptions options, LaneFactory& factory,
                                            MembershipListener& listener);

}  // namespace canarynet
