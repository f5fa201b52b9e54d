// sync/ripples.h -- the group generator of Ripples: which workers average their parameters with each other, and when.
//
// Source: Luo et al., "Heterogeneity-Aware Asynchronous Decentralized Training" (Ripples, also published as Prague,
// ASPLOS 2020), sections 4 and 5. A worker that ended a section of iterations asks for a group. A group runs once its
// members hold no other running one (the lock vector); all members are told, average (a partial all-reduce), and say
// when they are done; the last one frees the locks. Groups that share a worker run in the order of their making.
//   random  a group of `group_size` with the caller, made per question. Members that train take part when their section
//           ends. AD-PSGD is this with pairs of an active worker, which asks, and a passive one, which never does.
//   smart   every worker has a group buffer: the first group in it is its answer. An empty one starts a global division
//           of all workers with empty buffers in disjoint groups; with `inter_intra` of two groups each, the first one
//           across hosts for their head workers and within hosts for the others, the second one for all of a host. Left
//           out is who lags too far behind: caller's questions - its questions >= slowdown_threshold. A group runs when
//           all its members have asked.
// Every question is answered, also when workers die: with a group, or with kAlone. A worker that will not ask again
// leaves by died(), too.
//
// Figures of the paper (16 workers on 4 hosts, VGG-16): 5.26x the parameter server with smart groups, 3.03x with random
// ones, 5.01x static; with one worker slowed 4.23, 2.13, 2.47.
#pragma once

#include <cstdint>
#include <vector>

#include "base/random.h"
#include "sync/meetings.h"
#include "sync/policy.h"

namespace canarynet::sync {

class GroupGenerator final : public Coordinator {
 public:
  enum class Mode { kRandom, kSmart, kPairs };
  struct Options {
    Mode mode = Mode::kSmart;
    std::vector<int> host_of;  // per worker; its size is the number of workers
    int group_size = 3;
    int slowdown_threshold = 4;
    bool inter_intra = true;
    Meetings meetings = {};  // groups are of workers that can exchange
  };
  // `random` must outlive it.
  GroupGenerator(const Options& options, Random* random);

  void asked(Nanos now, const Question& question, Answers* answers) override;
  void died(Nanos now, int worker, Answers* answers) override;
  // Groups that run are known by their members. What was made and had not begun is gone, and those who asked are given
  // others; how often each had asked is not known any more, so the filter for slow workers begins anew.
  void recall(Nanos now, const Recollection& r) override;
  void recalled(Nanos now, Answers* answers) override;

  // kPairs: workers of odd number are passive, the others ask.
  static bool passive(int worker) { return worker % 2 != 0; }
  const WorkerSet& locked() const { return locked_; }
  int groups() const { return static_cast<int>(order_.size()); }  // made and not done

 private:
  struct Group {
    std::int64_t number = 0;  // 0: free
    WorkerSet members;
    WorkerSet working;  // members that have not said "done"
    int caller = -1;    // kRandom, kPairs: whose question it answers
    bool running = false;
    bool recalled = false;  // `told` counts
    WorkerSet told;         // members that know of it
  };
  // Numbers behind the greatest one that is recalled: the last groups of the coordinator before may not be known.
  static constexpr std::int64_t kNumbersLeft = std::int64_t{1} << 20;
  int workers() const { return static_cast<int>(options_.host_of.size()); }
  Group* make(int caller);
  void free(std::size_t at);
  // Starts what may run, the oldest first, and answers its members.
  void start(Answers* answers);
  void make_random(int caller);
  void divide(int caller);
  void add(Group* group, int worker);
  // Moves those of pool_[from ...) that meet the group to its begin, and returns how many they are.
  std::size_t mates_from(std::size_t from, const WorkerSet& group);
  // Puts `pool_` in random order into groups of about group_size.
  void make_groups_of_pool();
  void make_groups_that_meet(int most);
  void answer_alone(int worker, Answers* answers);
  // Of one that has not come to this coordinator, nobody may know which group it is in.
  bool may_be_free(int worker) const { return !successor_ || come_.has(worker); }
  Group* recall_group(const Recollection::Told& told);
  // Workers that asked while a group of theirs was not done by all, and have none now.
  void serve_left_over(Answers* answers);

  Options options_;
  Random* random_;
  std::vector<Group> groups_;
  std::vector<std::size_t> order_;  // indices of groups in the order in which they were made
  std::vector<int> buffered_;       // per worker: groups in its buffer
  std::vector<std::int64_t> questions_;
  std::vector<std::int64_t> done_;  // per worker: the last group that it is recalled to have done
  bool successor_ = false;          // others' groups are known as far as their workers have come:
  WorkerSet come_;                  // these
  WorkerSet reopened_;              // recalled to be waiting, and not answered since
  WorkerSet waiting_;               // have asked and have no answer yet
  WorkerSet locked_;
  WorkerSet alive_;
  WorkerSet idle_;     // scratch of divide() and died()
  WorkerSet blocked_;  // scratch of start()
  std::vector<int> pool_;
  std::int64_t next_number_ = 1;
};

}  // namespace canarynet::sync
