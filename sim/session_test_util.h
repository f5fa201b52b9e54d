// sim/session_test_util.h -- for tests: workers of a session on a simulated cluster, each at its own speed.
//
// A worker computes for a while, pushes all colayers and steps; if it is overtime, it pulls. Its gradient of an
// iteration says whose it is: element r of every colayer counts the gradients of rank r, so that sums tell what they
// hold.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "engine/session.h"
#include "kernels/crc32c.h"
#include "sim/cluster_test_util.h"

namespace canarynet {

struct SessionSetup {
  std::uint64_t number = 1;
  std::vector<std::uint64_t> counts = {40, 25, 90};  // at least as many as ranks
  sync::Thresholds thresholds = sync::Thresholds::canary(18, 3);
  std::optional<Nanos> linger;
  sync::Iteration staleness_max = 64;
  int backlog = 2;
  bool goes_on = false;
  std::vector<std::uint32_t> codecs = {};  // of the colayers; empty: none
  // Element i of what rank r pushes for colayer z in its n-th iteration, from 0. Empty: 1 where i is r, else 0.
  std::function<float(int r, std::size_t z, int n, std::size_t i)> gradient = {};

  std::uint64_t codec(std::size_t z) const { return codecs.empty() ? 0 : codecs[z % codecs.size()]; }
  static SessionSetup bsp() { return of(sync::Thresholds::bsp(3)); }
  static SessionSetup ssp(sync::Iteration s) { return of(sync::Thresholds::ssp(s, 3)); }
  static SessionSetup asp() { return of(sync::Thresholds::asp(3)); }
  static SessionSetup canary(sync::Iteration s, int p) { return of(sync::Thresholds::canary(s, p)); }
  static SessionSetup random(sync::AtBound at_bound, Random* random) {
    return of({static_cast<sync::Iteration>(random->below(6)), static_cast<int>(1 + random->below(3)), at_bound});
  }
  bool waits() const { return thresholds.at_bound == sync::AtBound::kWait; }
  bool has_quorum() const { return waits() && thresholds.quorum < 100; }
  SessionSetup with_quorum(int percent, int absences = 18) const {
    SessionSetup out = *this;
    out.thresholds.quorum = percent;
    out.thresholds.absences = absences;
    return out;
  }
  static SessionSetup of(const sync::Thresholds& thresholds) {
    SessionSetup out;
    out.thresholds = thresholds;
    return out;
  }
  std::vector<std::uint64_t> words(bool opening) const {
    sync::SessionRounds::Options rounds;
    rounds.thresholds = thresholds;
    rounds.linger = linger;
    rounds.staleness_max = staleness_max;
    rounds.backlog_max = backlog;
    std::vector<std::uint64_t> out = Session::words_of(rounds, goes_on);
    for (std::size_t z = 0; opening && z < counts.size(); ++z) {
      out.push_back(counts[z]);
      out.push_back(codec(z));
    }
    return out;
  }
  std::size_t elements() const {
    std::size_t sum = 0;
    for (const auto c : counts) sum += static_cast<std::size_t>(c);
    return sum;
  }
};

class SessionWorker {
 public:
  SessionWorker(Cluster& cluster, int rank, SessionSetup setup, Nanos compute, int iterations)
      : cluster_(cluster), rank_(rank), setup_(std::move(setup)), compute_(compute), iterations_(iterations) {
    words_ = setup_.words(true);
    sums_.resize(setup_.elements());
    for (const auto count : setup_.counts) {
      handed_.emplace_back(static_cast<std::size_t>(count));
      given_.emplace_back(static_cast<std::size_t>(count));
    }
    submit(port::open_session(id(), setup_.number, words_, ticket()));
    at_ = At::kOpening;
  }

  // Goes on as far as it can now; true: it has finished or failed.
  bool go_on() {
    while (at_ != At::kDone) {
      if (at_ == At::kComputing) {
        if (cluster_.now() < until_ || held_) return false;
        // With a quorum numbers of iterations are left out, and all end with the same one.
        if (setup_.has_quorum() ? last.iteration > iterations_ : n_ == iterations_) {
          ask(port::SessionStep::kFinish);
          continue;
        }
        for (std::size_t z = 0; z < setup_.counts.size(); ++z) push(z);
        ++n_;
        ask(port::SessionStep::kStep);
        continue;
      }
      if (!ticket_->done()) return false;
      if (ticket_->code != CANARY_OK) {
        error = ticket_->status;
        at_ = At::kDone;
        break;
      }
      answered();
    }
    return true;
  }
  Nanos wakes() const { return at_ == At::kComputing && !held_ ? until_ : Nanos::max(); }
  void hold(bool held) { held_ = held; }
  void compute_for(Nanos compute) { compute_ = compute; }
  // After a deadline.
  void step_again() {
    error = {};
    ask(port::SessionStep::kStep);
  }
  void close() { submit(port::close_session(id(), setup_.number, ticket())); }
  void set(const SessionSetup& setup) {
    const auto words = setup.words(false);
    OpTicket mine;
    submit(port::thresholds(id(), setup_.number, words, cluster_.id(member(), &mine)));
    EXPECT_EQ(mine.code, CANARY_OK) << mine.status.to_string();
  }
  SessionView view() const {
    SessionView v;
    EXPECT_TRUE(engine().read_session(id(), setup_.number, &v));
    return v;
  }
  const sync::WorkerSet* row(sync::Iteration t, int z) const { return engine().session_row(id(), setup_.number, t, z); }
  OpTicket& last_ticket() { return *ticket_; }

  // Of colayer z, how many gradients of rank r were handed out in all: where it is 1 in element r.
  double total(int z, int r) const { return handed_[static_cast<std::size_t>(z)][static_cast<std::size_t>(r)]; }
  // What was handed out of colayer z in all, and what was pushed here.
  const std::vector<double>& handed(std::size_t z) const { return handed_[z]; }
  const std::vector<double>& given(std::size_t z) const { return given_[z]; }
  // What the codec has left out of colayer z here; empty: nothing.
  std::span<const float> left_out(std::size_t z) const {
    return engine().session_left_out(id(), setup_.number, static_cast<int>(z));
  }
  // Beside what it pushes by itself. It must not be taken: nobody counts it.
  Status push_of(std::size_t z, std::span<const float> gradient) {
    OpTicket mine;
    submit(port::push(id(), setup_.number, static_cast<int>(z), gradient, cluster_.id(member(), &mine)));
    return mine.status;
  }
  std::vector<std::uint32_t> crcs;  // of what each step handed out
  std::uint64_t pushed = 0, gradients = 0, pulls = 0, steps = 0;
  sync::Iteration most_stale = 0;  // newest - oldest of any step
  Nanos longest_step;              // that was answered
  port::SessionResult last;
  Status error;
  Nanos ended;

 private:
  enum class At : std::uint8_t { kOpening, kComputing, kStepping, kPulling, kFinishing, kDone };
  GroupMember* member() const { return cluster_.world(rank_); }
  Engine& engine() const { return cluster_.engine(cluster_.host_of(rank_)); }
  port::MemberId id() const { return member()->id; }
  port::TicketId ticket() {
    ticket_ = std::make_unique<OpTicket>();
    return cluster_.id(member(), ticket_.get());
  }
  void submit(const port::Command& c) { cluster_.submit(rank_, c); }
  void push(std::size_t z) {
    OpTicket mine;
    std::vector<float> gradient(static_cast<std::size_t>(setup_.counts[z]));
    if (!setup_.gradient) gradient[static_cast<std::size_t>(rank_)] = 1;
    for (std::size_t i = 0; setup_.gradient && i < gradient.size(); ++i) gradient[i] = setup_.gradient(rank_, z, n_, i);
    submit(port::push(id(), setup_.number, static_cast<int>(z), gradient, cluster_.id(member(), &mine)));
    if (mine.code == CANARY_OK) {
      ++pushed;
      for (std::size_t i = 0; i < gradient.size(); ++i) given_[z][i] += static_cast<double>(gradient[i]);
    }
    std::fill(gradient.begin(), gradient.end(), 1e30f);  // it is the caller's again
  }
  void ask(port::SessionStep what) {
    asked_ = cluster_.now();
    at_ = what == port::SessionStep::kStep   ? At::kStepping
          : what == port::SessionStep::kPull ? At::kPulling
                                             : At::kFinishing;
    submit(port::step(id(), setup_.number, what, sums_, &last, ticket()));
  }
  void answered() {
    if (at_ == At::kOpening) return compute();
    if (at_ == At::kStepping) longest_step = std::max(longest_step, cluster_.now() - asked_);
    if (last.overtime != 0) return ask(port::SessionStep::kPull);
    std::size_t at = 0;
    for (std::size_t z = 0; z < setup_.counts.size(); ++z) {
      for (std::size_t i = 0; i < handed_[z].size(); ++i) handed_[z][i] += static_cast<double>(sums_[at + i]);
      for (std::size_t i = static_cast<std::size_t>(cluster_.ranks()); !setup_.gradient && i < handed_[z].size(); ++i)
        EXPECT_EQ(sums_[at + i], 0) << "rank " << rank_ << ", colayer " << z << ", element " << i;
      at += handed_[z].size();
    }
    crcs.push_back(crc32c(0, sums_.data(), sums_.size() * sizeof(float)));
    gradients += last.gradients;
    if (last.oldest != 0) most_stale = std::max(most_stale, last.newest - last.oldest);
    pulls += at_ == At::kPulling;
    ++steps;
    if (at_ == At::kFinishing) {
      ended = cluster_.now();
      at_ = At::kDone;
      return;
    }
    compute();
  }
  void compute() {
    at_ = At::kComputing;
    until_ = cluster_.now() + compute_;
  }

  Cluster& cluster_;
  int rank_;
  SessionSetup setup_;
  Nanos compute_, until_, asked_;
  int iterations_;
  bool held_ = false;
  At at_ = At::kOpening;
  std::vector<std::uint64_t> words_;
  std::vector<float> sums_;
  int n_ = 0;                                        // iterations that were pushed
  std::vector<std::vector<double>> handed_, given_;  // by colayer and element
  std::unique_ptr<OpTicket> ticket_;
};

// A fabric that loses, duplicates, reorders and corrupts frames. `random` draws whether its lanes are streams, which
// lose none.
inline ClusterOptions rough_cluster(int hosts, std::uint64_t seed, Random* random, int ranks_per_host = 1) {
  ClusterOptions o = flat_cluster(hosts, 2, ranks_per_host);
  o.fabric.seed = seed;
  o.fabric.stream = random->below(2) == 0;
  for (DirectionOptions* d : {&o.fabric.nic.out, &o.fabric.nic.in}) {
    d->jitter = 200_us;
    d->loss_ppm = o.fabric.stream ? 0 : 20'000;
    d->duplicate_ppm = 20'000;
    d->reorder_ppm = 50'000;
    d->corrupt_ppm = 2'000;
  }
  return o;
}

using SessionWorkers = std::vector<std::unique_ptr<SessionWorker>>;

// Lets them work until `done` says so, or all have ended; false: time ran out.
template <typename Done>
bool work_until(Cluster& c, SessionWorkers& workers, Nanos limit, const Done& done) {
  const Nanos end = c.now() + limit;
  while (c.now() < end) {
    bool all = true;
    Nanos next = end;
    for (auto& w : workers) {
      if (w == nullptr) continue;
      all &= w->go_on();
      next = std::min(next, w->wakes());
    }
    if (all || done()) return true;
    if (!c.step(next)) c.run_for(next - c.now());
  }
  return false;
}
inline SessionWorkers start(Cluster& c, const SessionSetup& setup, const std::vector<Nanos>& compute, int iterations) {
  SessionWorkers out;
  for (int r = 0; r < c.ranks(); ++r)
    out.push_back(std::make_unique<SessionWorker>(c, r, setup, compute[static_cast<std::size_t>(r) % compute.size()],
                                                  iterations));
  return out;
}
inline bool work(Cluster& c, SessionWorkers& workers, Nanos limit = 60_s) {
  return work_until(c, workers, limit, [] { return false; });
}

// Everything that was pushed and not dropped has reached every worker once.
inline void expect_nothing_lost(const SessionWorkers& workers, int colayers, const std::string& what = "") {
  const int ranks = static_cast<int>(workers.size());
  std::uint64_t kept = 0;
  for (const auto& w : workers) {
    ASSERT_TRUE(w->error.ok()) << what << w->error.to_string();
    kept += w->pushed - w->last.dropped;
  }
  for (const auto& w : workers) {
    EXPECT_EQ(w->gradients, kept) << what;
    for (int r = 0; r < ranks; ++r) {
      double sum = 0;
      for (int z = 0; z < colayers; ++z) {
        sum += w->total(z, r);
        EXPECT_EQ(w->total(z, r), workers[0]->total(z, r)) << what << "colayer " << z << ", rank " << r;
      }
      const auto& theirs = *workers[static_cast<std::size_t>(r)];
      EXPECT_EQ(sum, static_cast<double>(theirs.pushed - theirs.last.dropped)) << what << "rank " << r;
    }
  }
}

}  // namespace canarynet
