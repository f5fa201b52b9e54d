// sim/session_test_util.h -- for tests: workers of a session on a simulated cluster, each at its own speed.
//
// A worker computes for a while, pushes all colayers and steps; if it is overtime, it pulls. Its gradient of an
// iteration says whose it is: element r of every colayer counts the gradients of rank r, so that sums tell what they
// hold.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/session.h"
#include "sim/cluster_test_util.h"

namespace canarynet {

struct SessionSetup {
  std::uint64_t number = 1;
  std::vector<std::uint64_t> counts = {40, 25, 90};  // at least as many as ranks
  std::uint64_t staleness = 18, proportion = 3, waits = 0, linger = port::kUsualLinger, staleness_max = 64, backlog = 2;

  static SessionSetup bsp() { return with(0, 3, 1); }
  static SessionSetup ssp(std::uint64_t s) { return with(s, 3, 1); }
  static SessionSetup asp() { return with(port::kUnboundedStaleness, 3, 0); }
  static SessionSetup canary(std::uint64_t s, std::uint64_t p) { return with(s, p, 0); }
  static SessionSetup with(std::uint64_t s, std::uint64_t p, std::uint64_t waits) {
    SessionSetup out;
    out.staleness = s;
    out.proportion = p;
    out.waits = waits;
    return out;
  }
  std::vector<std::uint64_t> words(bool opening) const {
    std::vector<std::uint64_t> out{staleness, proportion, waits, linger, staleness_max, backlog};
    if (opening) out.insert(out.end(), counts.begin(), counts.end());
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
      : cluster_(cluster), rank_(rank), setup_(std::move(setup)), compute_(compute), left_(iterations) {
    words_ = setup_.words(true);
    sums_.resize(setup_.elements());
    totals_.assign(setup_.counts.size(), std::vector<double>(static_cast<std::size_t>(cluster.ranks())));
    for (const auto count : setup_.counts) gradient_.emplace_back(static_cast<std::size_t>(count));
    for (auto& g : gradient_) g[static_cast<std::size_t>(rank)] = 1;
    submit(port::open_session(id(), setup_.number, words_, ticket()));
    at_ = At::kOpening;
  }

  // Goes on as far as it can now; true: it has finished or failed.
  bool go_on() {
    while (at_ != At::kDone) {
      if (at_ == At::kComputing) {
        if (cluster_.now() < until_ || held_) return false;
        if (left_ == 0) {
          ask(port::SessionStep::kFinish);
          continue;
        }
        --left_;
        for (int z = 0; z < static_cast<int>(gradient_.size()); ++z) push(z);
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

  // Of colayer z, how many gradients of rank r were handed out in all.
  double total(int z, int r) const { return totals_[static_cast<std::size_t>(z)][static_cast<std::size_t>(r)]; }
  std::uint64_t pushed = 0, gradients = 0, pulls = 0, steps = 0;
  sync::Iteration most_stale = 0;  // newest - oldest of any step
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
  void push(int z) {
    OpTicket mine;
    std::vector<float> gradient = gradient_[static_cast<std::size_t>(z)];
    submit(port::push(id(), setup_.number, z, gradient, cluster_.id(member(), &mine)));
    std::fill(gradient.begin(), gradient.end(), 1e30f);  // it is the caller's again
    if (mine.code == CANARY_OK) ++pushed;
  }
  void ask(port::SessionStep what) {
    at_ = what == port::SessionStep::kStep   ? At::kStepping
          : what == port::SessionStep::kPull ? At::kPulling
                                             : At::kFinishing;
    submit(port::step(id(), setup_.number, what, sums_, &last, ticket()));
  }
  void answered() {
    if (at_ == At::kOpening) return compute();
    if (last.overtime != 0) return ask(port::SessionStep::kPull);
    std::size_t at = 0;
    for (std::size_t z = 0; z < setup_.counts.size(); ++z) {
      for (std::size_t r = 0; r < totals_[z].size(); ++r) totals_[z][r] += static_cast<double>(sums_[at + r]);
      for (std::size_t i = totals_[z].size(); i < setup_.counts[z]; ++i)
        EXPECT_EQ(sums_[at + i], 0) << "rank " << rank_ << ", colayer " << z << ", element " << i;
      at += static_cast<std::size_t>(setup_.counts[z]);
    }
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
  Nanos compute_, until_;
  int left_;
  bool held_ = false;
  At at_ = At::kOpening;
  std::vector<std::uint64_t> words_;
  std::vector<float> sums_;
  std::vector<std::vector<float>> gradient_;
  std::vector<std::vector<double>> totals_;  // by colayer and rank
  std::unique_ptr<OpTicket> ticket_;
};

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
