// sim/swarm_traffic.h -- the calls of the ranks in a swarm's life: collectives and messages in the group of all and in
// groups that come and go, each rank in an order and at moments of its own; and the judgement of every result.
//
// A rank's part is judged the moment its ticket is done, before anything else happens: an OK must come with the right
// bytes, an error must be one that the swarm excuses. Then its buffers are overwritten, and watched until the life ends
// (sim/lent_memory.h).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/random.h"
#include "sim/cluster.h"
#include "sim/lent_memory.h"
#include "sim/lent_shelf.h"
#include "sim/oracle.h"
#include "sim/swarm_life.h"
#include "sim/swarm_part.h"

namespace canarynet {

struct SwarmGroup {
  enum class Part : std::uint8_t { kWanted, kAsked, kMember, kFailed, kDestroyed };
  std::size_t id = 0;      // 0: of all
  std::vector<int> ranks;  // of the world, by rank in the group
  std::vector<Part> parts;
  std::vector<GroupMember*> members;
  std::vector<std::unique_ptr<OpTicket>> tickets;  // of its creation
  bool retired = false;                            // nothing new is called in it
  bool erred = false;                              // somebody got an error in it

  bool has(int world_rank) const;
};

class SwarmTraffic final : public SwarmPart {
 public:
  // Returns "" if the rank may get this error, otherwise what is wrong with it.
  using Excuse = std::function<std::string(const SwarmGroup& group, int world_rank, const Status& status)>;
  SwarmTraffic(const Life& life, Random& random, Excuse excuse);

  void begin(Cluster* cluster) override;
  bool act() override;
  bool finished() const override;
  void give_up(int) override { groups_left_ = 0; }
  void bury(int host) override;
  void close() override;
  std::string pending() const override;
  // Picks a rank of a group that may abort it, or whose operation under way may get a deadline; false if there is none.
  bool pick_member(const SwarmGroup** group, int* world_rank, GroupMember** member);
  bool pick_pending(const SwarmGroup** group, int* world_rank, GroupMember** member, OpTicket** ticket);
  // In every group with an error each member that lives must be refused at once.
  void expect_dead();
  const SwarmGroup& world() const { return groups_.front(); }

  std::uint64_t collectives() const { return collectives_; }
  std::uint64_t messages() const { return messages_; }

  // PollWatcher
  void polled(int host) override;

 private:
  // Buffers of one call, which are judged together or one by one.
  struct Lent {
    explicit Lent(std::size_t bytes) : memory(bytes) {}
    LentMemory memory;
    std::uint64_t digest = 0;  // of an input that must stay as it is; 0: it need not
  };
  struct Round {
    SwarmGroup* group = nullptr;
    oracle::Shape shape;
    bool in_place = false;
    std::size_t open = 0;  // ranks that have yet to end
    std::size_t echo = SIZE_MAX;
    std::unique_ptr<oracle::Judge> judge;
    std::vector<std::unique_ptr<Lent>> input, output;  // in place: both in `input`
    std::vector<std::vector<std::uint64_t>> counts;
    std::vector<std::unique_ptr<OpTicket>> tickets;

    std::byte* input_of(int rank);
    std::byte* output_of(int rank);
    std::size_t bytes() const;
  };
  struct Message {
    SwarmGroup* group = nullptr;
    int from = 0, to = 0;  // ranks in the group
    std::uint64_t seed = 0;
    std::size_t open = 2;
    std::unique_ptr<Lent> sent, received;
    OpTicket send_ticket, receive_ticket;
  };
  struct Task {
    enum class Kind : std::uint8_t { kCreate, kCollective, kSend, kReceive, kDestroy };
    Kind kind;
    Round* round = nullptr;
    Message* message = nullptr;
  };
  struct Pending {
    Task task;
    SwarmGroup* group = nullptr;
    int rank = 0;  // in the group
  };
  // For sums of random fractions: the same call must give the same bits again, by the same table of plans.
  struct Echo {
    SwarmGroup* group = nullptr;
    oracle::Shape shape;
    struct Bits {
      std::uint64_t digest = 0;  // 0: not known yet
      std::uint32_t table = 0;
    };
    std::vector<Bits> latest;  // by rank
  };

  bool plan();
  void plan_group();
  void plan_round();
  void plan_message();
  void retire_group();
  oracle::Shape draw_shape(int ranks);
  void assign(SwarmGroup& group, int rank, Task task);
  bool call(int world_rank);
  bool call_front(int world_rank, SwarmGroup& group, std::deque<Task>& tasks);
  void drop(Task& task);
  OpTicket& ticket_of(const Pending& p);
  void settle(const Pending& p);
  void settle_round(const Pending& p);
  void settle_message(const Pending& p);
  void close_round(Round* round);
  void close_message(Message* message);
  void shelve(std::vector<std::unique_ptr<Lent>> lent);
  int group_rank(const SwarmGroup& group, int world_rank) const;
  bool pending_in(const SwarmGroup& group, int world_rank) const;

  const Life& life_;
  Random& random_;
  Excuse excuse_;
  Cluster* cluster_ = nullptr;
  std::deque<SwarmGroup> groups_;                      // stay where they are
  std::vector<std::vector<std::deque<Task>>> agenda_;  // by world rank and group: what it will call, in this order
  std::size_t assigned_ = 0;                           // tasks in it
  std::vector<std::vector<Pending>> pending_;          // by host: called, not ended
  std::size_t pending_count_ = 0;
  std::vector<std::unique_ptr<Round>> rounds_;           // with open parts
  std::vector<std::unique_ptr<Message>> open_messages_;  // likewise
  LentShelf shelf_;
  std::vector<Echo> echoes_;
  std::deque<OpTicket> probes_;  // of expect_dead()
  float probe_ = 1;
  std::map<std::tuple<std::size_t, int, int>, std::uint64_t> message_count_;
  int collectives_left_, messages_left_, groups_left_;
  std::uint64_t collectives_ = 0, messages_ = 0;
};

}  // namespace canarynet
