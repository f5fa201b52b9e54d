// sync/session_toy_test_util.h -- a session of n workers over a toy network, which judges every promise of the page:
// an event queue, random delays that also reorder, and per segment of a round some tree over which it is reduced and
// spread again (chain, star, BCube or any other). Numbers are 64-bit sums, so a gradient lost or counted twice shows.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/random.h"
#include "sync/session_rounds.h"
#include "sync/sub_header.h"

namespace canarynet::sync {

struct ToyOptions {
  int workers = 4;
  int colayers = 3;
  int segments = 2;
  Thresholds thresholds = Thresholds::canary(4, 3);
  std::optional<Nanos> linger;
  enum class Shape { kChain, kStar, kBCube, kAny } shape = Shape::kAny;
  int radix = 0, levels = 0;   // of kBCube
  std::vector<Nanos> compute;  // mean time of an iteration, per worker
  Nanos delay_max = 2_ms;      // of a piece
  int iterations = 20;         // the fastest worker stops after these
  std::vector<std::pair<Nanos, int>> deaths;
  int backlog_max = 4;
  bool change_thresholds = false;                      // each worker its own, now and then
  std::vector<std::pair<Nanos, Thresholds>> switches;  // of everybody, up to 5 ms later
};

class SessionToy {
 public:
  SessionToy(const ToyOptions& options, std::uint64_t seed) : o_(options), random_(seed) {
    live_ = WorkerSet::all(o_.workers);
    plan();
    for (int w = 0; w < o_.workers; ++w) {
      SessionRounds::Options so;
      so.worker = w;
      so.workers = o_.workers;
      so.colayers = o_.colayers;
      so.thresholds = o_.thresholds;
      so.staleness_max = 20;
      so.linger = o_.linger;
      so.backlog_max = o_.backlog_max;
      EXPECT_TRUE(SessionRounds::check(so).ok());
      workers_.emplace_back(so, o_);
    }
    log_.resize(static_cast<std::size_t>(o_.colayers));
    for (int w = 0; w < o_.workers; ++w) begin_iteration(w);
    for (const auto& [when, thresholds] : o_.switches) {
      for (int w = 0; w < o_.workers; ++w) {
        schedule(when + some(5_ms), [this, w, thresholds = thresholds] {
          EXPECT_TRUE(at(w).rounds.set_thresholds(thresholds).ok());
          if (!live_.has(w)) return;
          if (at(w).waits) step(w);
          start_due(w);
        });
      }
    }
    for (const auto& [at, w] : o_.deaths) schedule(at, [this, w = w] { die(w); });
  }

  // Runs until nothing happens any more.
  void run() {
    constexpr std::uint64_t kEventsMax = 3'000'000;
    while (!events_.empty() && !testing::Test::HasFailure()) {
      if (++handled_ > kEventsMax) FAIL() << "no end after " << kEventsMax << " events";
      auto event = events_.top();
      events_.pop();
      now_ = event.at;
      event.what();
    }
    if (!testing::Test::HasFailure()) judge_end();
  }

  int payload_pieces() const { return payload_pieces_; }
  int null_pieces() const { return null_pieces_; }
  Iteration newest() const { return newest_; }
  std::uint64_t iterations_done() const { return iterations_done_; }
  std::uint64_t dropped() const {
    std::uint64_t sum = 0;
    for (int w = live_.next(); w >= 0; w = live_.next(w + 1)) sum += at(w).rounds.dropped();
    return sum;
  }
  int pulls() const { return pulls_; }
  int notices() const { return notices_sent_; }
  int stalls() const { return stalls_; }
  int went_on() const { return went_on_; }  // steps, without somebody
  std::uint32_t rounds(int z) const { return static_cast<std::uint32_t>(log_[static_cast<std::size_t>(z)].size()); }
  const Contributors& contributors(int z, std::uint32_t round) const {
    return log_[static_cast<std::size_t>(z)][round - 1].set;
  }
  Nanos now() const { return now_; }

 private:
  using Sum = std::uint64_t;
  struct Event {
    Nanos at;
    std::uint64_t order;
    std::function<void()> what;
    bool operator<(const Event& e) const { return std::tie(e.at, e.order) < std::tie(at, order); }
  };
  struct Piece {
    int z, segment;  // segment -1: a notice
    bool up;
    std::uint32_t epoch;
    int source;
    std::vector<std::uint8_t> sub_header;
    Sum value;
    std::map<int, Nanos> late;         // of the contributors
    std::map<int, Iteration> settled;  // of the others
  };
  struct Partial {
    int awaited = 0;
    bool done = false;
    Sum sum = 0;
    Contributors set;
    std::map<int, Nanos> late;
    std::map<int, Iteration> settled;
  };
  struct Entry {  // of the log
    Contributors set;
    std::vector<Sum> value;
    std::map<int, Iteration> settled;
  };
  struct Colayer {
    std::vector<Sum> acc, in, last, parameters;
    std::vector<std::vector<Sum>> backlog;
    std::vector<Partial> partial;
    int done = 0;
    std::vector<Piece> box;
    std::uint32_t box_round = 0;
  };
  struct Worker {
    Worker(const SessionRounds::Options& so, const ToyOptions& o)
        : rounds(so), colayers(static_cast<std::size_t>(o.colayers)) {
      const std::vector<Sum> zero(static_cast<std::size_t>(o.segments));
      for (auto& c : colayers) {
        c.acc = c.in = c.last = c.parameters = zero;
        c.partial.resize(static_cast<std::size_t>(o.segments));
      }
    }
    SessionRounds rounds;
    std::vector<Colayer> colayers;
    bool waits = false;  // blocked in step()
    bool frozen = false;
    bool finished = false;
    std::uint64_t pushes = 0;
    std::map<int, std::pair<Iteration, int>> absences;  // by worker: the last iteration of it, steps without it
    std::uint64_t life = 0;                             // iterations begun: events of an older one are void
    Nanos deadline = Nanos::max();
  };
  Worker& at(int w) { return workers_[static_cast<std::size_t>(w)]; }
  const Worker& at(int w) const { return workers_[static_cast<std::size_t>(w)]; }
  Colayer& at(int w, int z) { return at(w).colayers[static_cast<std::size_t>(z)]; }

  void schedule(Nanos at, std::function<void()> what) { events_.push({at, order_++, std::move(what)}); }
  Nanos some(Nanos up_to) { return {1 + static_cast<std::int64_t>(random_.below(up_to.count))}; }
  static Sum gradient(int w, Iteration t, int z, int segment) {
    return Random((static_cast<Sum>(w) << 40) ^ (static_cast<Sum>(t) << 16) ^ (static_cast<Sum>(z) << 8) ^
                  static_cast<Sum>(segment))
        .next();
  }

  // --- The trees: parent_[segment][worker], -1 at the root ---
  void plan() {
    planned_ = live_;
    plan_trees();
    notices_ = !wakes_everybody();
  }
  // Whether the pieces that leave without waiting for others lead from everybody to everybody.
  bool wakes_everybody() const {
    for (int from = live_.next(); from >= 0; from = live_.next(from + 1)) {
      WorkerSet woken(o_.workers);
      woken.add(from);
      for (int size = 0; size != woken.count();) {
        size = woken.count();
        for (int w = woken.next(); w >= 0; w = woken.next(w + 1)) {
          for (int g = 0; g < o_.segments; ++g) {
            if (children(g, w) == 0 && parent(g, w) >= 0) woken.add(parent(g, w));
          }
        }
      }
      if (woken.count() != live_.count()) return false;
    }
    return true;
  }
  void plan_trees() {
    parent_.assign(static_cast<std::size_t>(o_.segments), std::vector<int>(static_cast<std::size_t>(o_.workers), -1));
    std::vector<int> members;
    for (int w = live_.next(); w >= 0; w = live_.next(w + 1)) members.push_back(w);
    const bool whole = static_cast<int>(members.size()) == o_.workers;
    for (int g = 0; g < o_.segments; ++g) {
      auto& parent = parent_[static_cast<std::size_t>(g)];
      std::rotate(members.begin(), members.begin() + 1, members.end());
      if (o_.shape == ToyOptions::Shape::kAny) {
        for (std::size_t i = members.size(); i > 1; --i) std::swap(members[i - 1], members[random_.below(i)]);
      }
      for (std::size_t i = 1; i < members.size(); ++i) {
        std::size_t to = 0;
        if (o_.shape == ToyOptions::Shape::kChain) to = i - 1;
        if (o_.shape == ToyOptions::Shape::kAny) to = random_.below(i);
        parent[static_cast<std::size_t>(members[i])] = members[to];
      }
      if (o_.shape == ToyOptions::Shape::kBCube && whole) bcube(g, &parent);
    }
  }
  // The way of segment g to its owner: part g mod L walks the levels g, g + 1, ... and at each one, a rank whose digit
  // differs from the owner's hands its sum to the cube mate that has the owner's.
  void bcube(int g, std::vector<int>* parent) {
    const auto digit = [&](int rank, int level) {
      for (; level > 0; --level) rank /= o_.radix;
      return rank % o_.radix;
    };
    const int owner = g % o_.workers;
    for (int x = 0; x < o_.workers; ++x) {
      (*parent)[static_cast<std::size_t>(x)] = -1;
      for (int j = 0; j < o_.levels; ++j) {
        const int level = (g + j) % o_.levels;
        const int difference = digit(owner, level) - digit(x, level);
        if (difference == 0) continue;
        int power = 1;
        for (int i = 0; i < level; ++i) power *= o_.radix;
        (*parent)[static_cast<std::size_t>(x)] = x + difference * power;
        break;
      }
    }
  }
  int parent(int g, int w) const { return parent_[static_cast<std::size_t>(g)][static_cast<std::size_t>(w)]; }
  int children(int g, int w) const {
    int n = 0;
    for (int c = planned_.next(); c >= 0; c = planned_.next(c + 1)) n += parent(g, c) == w ? 1 : 0;
    return n;
  }

  // --- The application ---
  void begin_iteration(int w) {
    Worker& me = at(w);
    const std::uint64_t life = ++me.life;
    me.waits = false;
    newest_ = std::max(newest_, me.rounds.iteration());
    if (me.rounds.iteration() > o_.iterations) {
      me.rounds.finish();
      me.finished = true;
      return start_due(w);
    }
    const Nanos mean = o_.compute.empty() ? 10_ms : o_.compute[static_cast<std::size_t>(w)];
    const Nanos took = mean / 2 + some(mean);
    for (int z = 0; z < o_.colayers; ++z) {
      schedule(now_ + took * (z + 1) / o_.colayers, [=, this] {
        if (live_.has(w) && at(w).life == life) push(w, z);
      });
    }
  }
  void push(int w, int z) {
    Worker& me = at(w);
    Colayer& c = at(w, z);
    if (o_.change_thresholds && random_.below(20) == 0) {
      EXPECT_TRUE(me.rounds
                      .set_thresholds(Thresholds::canary(static_cast<Iteration>(random_.below(18)),
                                                         static_cast<int>(random_.below(o_.colayers + 1))))
                      .ok());
    }
    const auto outcome = me.rounds.push(now_, z);
    EXPECT_NE(outcome, SessionRounds::Push::kRepeated);
    ++me.pushes;
    if (outcome == SessionRounds::Push::kDropped) {
      clear_accumulators(w);
      return pull(w);
    }
    for (int g = 0; g < o_.segments; ++g) {
      Sum& acc = c.acc[static_cast<std::size_t>(g)];
      if (outcome == SessionRounds::Push::kReplaced) acc = 0;
      acc += gradient(w, me.rounds.iteration(), z, g);
    }
    start_due(w);
    if (z == o_.colayers - 1) step(w);
  }
  void clear_accumulators(int w) {
    for (auto& c : at(w).colayers) std::fill(c.acc.begin(), c.acc.end(), 0);
  }
  void step(int w) {
    Worker& me = at(w);
    const Iteration t = me.rounds.iteration();
    switch (me.rounds.step(now_)) {
      case SessionRounds::Step::kEntered:
        if (o_.thresholds.quorum == 100 || o_.thresholds.at_bound == AtBound::kDrop) {
          EXPECT_EQ(me.rounds.iteration(), t + 1);
        }
        EXPECT_GT(me.rounds.iteration(), t);
        ++iterations_done_;
        for (int z = 0; z < o_.colayers; ++z) take_backlog(w, z);
        if (me.rounds.thresholds().at_bound == AtBound::kWait && o_.switches.empty()) judge_wait(w, t);
        return begin_iteration(w);
      case SessionRounds::Step::kBlocked:
        stalls_ += me.waits ? 0 : 1;
        me.waits = true;
        EXPECT_EQ(me.rounds.thresholds().at_bound, AtBound::kWait);
        if (me.rounds.step_deadline() != Nanos::max()) {
          judge_quorum(w, t);
          schedule(std::max(now_, me.rounds.step_deadline()), [=, this, life = me.life] {
            if (!live_.has(w) || at(w).life != life || !at(w).waits) return;
            step(w);
            if (at(w).life == life) {
              EXPECT_GT(at(w).rounds.step_deadline(), now_) << "worker " << w << " waits for longer";
            }
          });
        }
        return start_due(w);
      case SessionRounds::Step::kOvertime:
        clear_accumulators(w);
        return pull(w);
      case SessionRounds::Step::kUnpushed:
        FAIL() << "worker " << w << " pushed everything";
    }
  }
  void take_backlog(int w, int z) {
    Colayer& c = at(w, z);
    ASSERT_EQ(c.backlog.size(), at(w).rounds.backlog(z).size());
    for (const auto& value : c.backlog) {
      for (int g = 0; g < o_.segments; ++g)
        c.parameters[static_cast<std::size_t>(g)] += value[static_cast<std::size_t>(g)];
    }
    c.backlog.clear();
    at(w).rounds.clear_backlog(z);
    judge_parameters(w, z);
  }
  // Parameters are a function of the log's prefix.
  void judge_parameters(int w, int z) {
    const std::uint32_t before = at(w).rounds.applied_before(z);
    for (int g = 0; g < o_.segments; ++g) {
      Sum expected = 0;
      for (std::uint32_t m = 1; m < before && m <= rounds(z); ++m) {
        expected += log_[static_cast<std::size_t>(z)][m - 1].value[static_cast<std::size_t>(g)];
      }
      ASSERT_EQ(at(w, z).parameters[static_cast<std::size_t>(g)], expected) << "worker " << w << " colayer " << z;
    }
  }
  // The last iteration of j whose gradients w has been handed, of all colayers; with `settled`: or has been told that
  // there are none.
  Iteration handed(int w, int j, bool settled = false) const {
    Iteration all = std::numeric_limits<Iteration>::max();
    for (int z = 0; z < o_.colayers; ++z) {
      Iteration seen = 0;
      for (std::uint32_t m = 1; m < at(w).rounds.next_round(z); ++m) {
        const Entry& entry = log_[static_cast<std::size_t>(z)][m - 1];
        seen = std::max(seen, entry.set.of(j).last);
        const auto said = entry.settled.find(j);
        if (settled && said != entry.settled.end()) seen = std::max(seen, said->second);
      }
      all = std::min(all, seen);
    }
    return all;
  }
  // Members whose gradients up to t - s worker w lacks.
  std::vector<int> absent(int w, Iteration t) const {
    std::vector<int> out;
    const WorkerSet& members = at(w).rounds.members();
    for (int j = members.next(); j >= 0; j = members.next(j + 1)) {
      if (j != w && handed(w, j, true) < t - o_.thresholds.staleness) out.push_back(j);
    }
    return out;
  }
  // Having entered t + 1, a worker has applied every live member's gradients up to t - s; with a quorum those of one,
  // and the same one is absent for no more than so many steps in a row.
  void judge_wait(int w, Iteration t) {
    const std::vector<int> missing = absent(w, t);
    went_on_ += missing.empty() ? 0 : 1;
    if (o_.thresholds.quorum == 100) {
      ASSERT_TRUE(missing.empty()) << "worker " << w << " after " << t << " without " << missing[0];
      return;
    }
    judge_quorum(w, t);
    std::map<int, std::pair<Iteration, int>>& absences = at(w).absences;
    std::map<int, std::pair<Iteration, int>> now;
    for (const int j : missing) {
      const Iteration last = handed(w, j);
      const auto before = absences.find(j);
      now[j] = {last, before != absences.end() && before->second.first == last ? before->second.second + 1 : 1};
      ASSERT_LE(now[j].second, o_.thresholds.absences) << "worker " << w << " after " << t << " without " << j;
    }
    // One that is there again may be absent again, and has not been heard of meanwhile.
    for (const auto& [j, was] : absences) {
      if (handed(w, j) == was.first) now.insert({j, was});
    }
    absences = now;
  }
  void judge_quorum(int w, Iteration t) const {
    const int members = at(w).rounds.members().count();
    const int there = members - static_cast<int>(absent(w, t).size());
    EXPECT_GE(100 * there, o_.thresholds.quorum * members) << "worker " << w << " in " << t;
  }
  void pull(int w) {
    const std::uint64_t life = ++at(w).life;
    ++pulls_;
    schedule(now_ + some(o_.delay_max), [=, this] {
      if (!live_.has(w)) return;
      int owner = live_.next();
      for (int j = live_.next(); j >= 0; j = live_.next(j + 1)) {
        if (at(j).rounds.iteration() > at(owner).rounds.iteration()) owner = j;
      }
      std::vector<std::uint32_t> rounds;
      std::vector<std::vector<Sum>> parameters;
      for (int z = 0; z < o_.colayers; ++z) {
        rounds.push_back(at(owner).rounds.applied_before(z));
        parameters.push_back(at(owner, z).parameters);
      }
      const Iteration t = at(owner).rounds.iteration();
      schedule(now_ + some(o_.delay_max), [=, this] {
        if (!live_.has(w) || at(w).life != life) return;
        std::vector<std::vector<SessionRounds::Backlog>> before;
        for (int z = 0; z < o_.colayers; ++z) {
          const auto entries = at(w).rounds.backlog(z);
          before.emplace_back(entries.begin(), entries.end());
        }
        if (!at(w).rounds.adopt(now_, t, rounds)) {
          if (++refused_ > 100'000) FAIL() << "worker " << w << " pulls for ever";
          // A worker that has stopped publishes nothing newer: its last words have to do, or the session is over.
          if (at(owner).rounds.iteration() > o_.iterations) return;
          return pull(w);
        }
        clear_accumulators(w);
        for (int z = 0; z < o_.colayers; ++z) {
          Colayer& c = at(w, z);
          c.parameters = parameters[static_cast<std::size_t>(z)];
          std::vector<std::vector<Sum>> kept;
          for (std::size_t i = 0; i < c.backlog.size(); ++i) {
            if (before[static_cast<std::size_t>(z)][i].last_round >= rounds[static_cast<std::size_t>(z)])
              kept.push_back(c.backlog[i]);
          }
          c.backlog = kept;
          ASSERT_EQ(c.backlog.size(), at(w).rounds.backlog(z).size());
        }
        begin_iteration(w);
      });
    });
  }

  // --- The engine ---
  void start_due(int w) {
    Worker& me = at(w);
    for (int z = me.rounds.due(now_); z >= 0; z = me.rounds.due(now_)) start(w, z);
    const Nanos deadline = me.rounds.next_deadline();
    if (deadline == Nanos::max() || deadline == me.deadline) return;
    me.deadline = deadline;
    schedule(std::max(deadline, now_), [=, this] {
      at(w).deadline = Nanos::max();
      if (live_.has(w)) start_due(w);
    });
  }
  void start(int w, int z) {
    Worker& me = at(w);
    Colayer& c = at(w, z);
    const SessionRounds::Input input = me.rounds.join(now_, z);
    if (input.discard_acc) {
      EXPECT_TRUE(input.tags.empty());
      std::fill(c.acc.begin(), c.acc.end(), 0);
    }
    // Rule 10: ζ known at the join - t <= s; the last k - p colayers of an iteration may be later by what rows allow.
    const Thresholds& thresholds = me.rounds.thresholds();
    if (!input.tags.empty() && thresholds.at_bound == AtBound::kDrop &&
        thresholds.staleness != Thresholds::kUnbounded) {
      const Iteration late = me.rounds.newest() - input.tags.first;
      EXPECT_LE(late, thresholds.staleness + (thresholds.proportion == o_.colayers ? 0 : 2)) << "worker " << w;
    }
    if (input.opens && notices_) {
      for (int to = live_.next(); to >= 0; to = live_.next(to + 1)) {
        if (to != w) send_notice(w, to, z);
      }
    }
    c.in = c.acc;
    std::fill(c.acc.begin(), c.acc.end(), 0);
    c.done = 0;
    for (int g = 0; g < o_.segments; ++g) {
      Partial& p = c.partial[static_cast<std::size_t>(g)];
      p = {children(g, w), false, c.in[static_cast<std::size_t>(g)], Contributors(o_.workers), {}, {}};
      if (!input.tags.empty()) p.late[w] = input.late;
      if (input.tags.empty()) p.settled[w] = input.settled;
      p.set.add(w, input.tags);
      if (input.tags.empty()) {
        EXPECT_EQ(p.sum, 0u);
      }
    }
    for (int g = 0; g < o_.segments; ++g) {
      if (c.partial[static_cast<std::size_t>(g)].awaited == 0) reduced(w, z, g);
      if (!me.rounds.joined(z)) return;  // alone, it has committed already
    }
    const auto held = std::exchange(c.box, {});
    for (const auto& piece : held) arrive(w, piece);
  }
  void reduced(int w, int z, int g) {
    if (parent(g, w) >= 0) return send(w, parent(g, w), z, g, true);
    finished(w, z, g);
  }
  void finished(int w, int z, int g) {
    Colayer& c = at(w, z);
    c.partial[static_cast<std::size_t>(g)].done = true;
    for (int child = planned_.next(); child >= 0; child = planned_.next(child + 1)) {
      if (parent(g, child) == w) send(w, child, z, g, false);
    }
    if (++c.done == o_.segments) committed(w, z);
  }
  void send(int from, int to, int z, int g, bool up) {
    const Partial& p = at(from, z).partial[static_cast<std::size_t>(g)];
    Piece piece{z, g, up, at(from).rounds.epoch(), from, {}, p.sum, p.late, p.settled};
    const SubHeader header{.whole_set = true,
                           .colayer = static_cast<std::uint16_t>(z),
                           .round = at(from).rounds.next_round(z),
                           .newest = at(from).rounds.newest(),
                           .iteration = at(from).rounds.iteration()};
    piece.sub_header.resize(sub_header_bytes_max(o_.workers));
    piece.sub_header.resize(encode(header, p.set, piece.sub_header));
    (p.set.empty() ? null_pieces_ : payload_pieces_) += 1;
    schedule(now_ + some(o_.delay_max), [=, this] {
      if (live_.has(to)) arrive(to, piece);
    });
  }
  void send_notice(int from, int to, int z) {
    Piece piece{z, -1, true, at(from).rounds.epoch(), from, {}, 0, {}, {}};
    const SubHeader header{.opening = true,
                           .colayer = static_cast<std::uint16_t>(z),
                           .round = at(from).rounds.next_round(z),
                           .newest = at(from).rounds.newest(),
                           .iteration = at(from).rounds.iteration()};
    piece.sub_header.resize(sub_header_bytes_max(o_.workers));
    piece.sub_header.resize(encode(header, Contributors(o_.workers), piece.sub_header));
    ++notices_sent_;
    schedule(now_ + some(o_.delay_max), [=, this] {
      if (live_.has(to)) arrive(to, piece);
    });
  }
  void arrive(int w, const Piece& piece) {
    Worker& me = at(w);
    Colayer& c = at(w, piece.z);
    SubHeader header;
    Contributors set(o_.workers);
    std::size_t used = 0;
    ASSERT_EQ(decode(piece.sub_header, {o_.workers, o_.colayers, 0}, &header, &set, &used), nullptr);
    if (header.null) set.clear();
    if (header.opening) {
      me.rounds.opened(now_, piece.z, piece.epoch, header.round, header.newest, piece.source, header.iteration);
      return start_due(w);
    }
    switch (me.rounds.arrive(now_, piece.z, piece.epoch, header.round, header.newest, piece.source, header.iteration)) {
      case SessionRounds::Piece::kIgnore:
        EXPECT_TRUE(piece.epoch != me.rounds.epoch() || me.frozen) << "a piece of an impossible round";
        return;
      case SessionRounds::Piece::kHold:
        EXPECT_TRUE(c.box.empty() || c.box_round == header.round) << "two rounds in the box";
        c.box_round = header.round;
        c.box.push_back(piece);
        break;
      case SessionRounds::Piece::kTake: {
        Partial& p = c.partial[static_cast<std::size_t>(piece.segment)];
        if (piece.up) {
          ASSERT_TRUE(p.set.unite(set)) << "a gradient twice in one sum";
          p.sum += piece.value;
          p.late.insert(piece.late.begin(), piece.late.end());
          p.settled.insert(piece.settled.begin(), piece.settled.end());
          if (--p.awaited == 0) reduced(w, piece.z, piece.segment);
        } else {
          p.sum = piece.value;
          p.set = set;
          p.late = piece.late;
          p.settled = piece.settled;
          finished(w, piece.z, piece.segment);
        }
      }
    }
    start_due(w);
  }
  void committed(int w, int z) {
    Colayer& c = at(w, z);
    std::vector<Sum> value;
    for (const auto& p : c.partial) {
      ASSERT_TRUE(p.set == c.partial[0].set) << "the segments of a round carry different sets";
      value.push_back(p.sum);
    }
    for (const auto& [j, settled] : c.partial[0].settled) at(w).rounds.hear_settled(j, z, settled);
    if (z == o_.colayers - 1) {
      for (const auto& [j, late] : c.partial[0].late) at(w).rounds.hear_late(j, late);
    }
    commit(w, z, c.partial[0].set, value, c.partial[0].settled);
    if (testing::Test::HasFailure()) return;
    if (at(w).waits) step(w);
    start_due(w);
  }
  void commit(int w, int z, const Contributors& set, const std::vector<Sum>& value,
              const std::map<int, Iteration>& settled = {}) {
    Worker& me = at(w);
    Colayer& c = at(w, z);
    const std::uint32_t round = me.rounds.next_round(z);
    auto& log = log_[static_cast<std::size_t>(z)];
    if (round == log.size() + 1) {
      log.push_back({set, value, settled});
      judge_round(z, round);
    }
    ASSERT_LE(round, log.size());
    ASSERT_TRUE(log[round - 1].set == set && log[round - 1].value == value) << "logs differ";
    switch (me.rounds.commit(now_, z, set)) {
      case SessionRounds::Commit::kRefused:
        FAIL() << "worker " << w << " lost its gradient";
      case SessionRounds::Commit::kSkipped:
        break;
      case SessionRounds::Commit::kMerged:
        for (int g = 0; g < o_.segments; ++g)
          c.backlog[0][static_cast<std::size_t>(g)] += c.backlog[1][static_cast<std::size_t>(g)];
        c.backlog.erase(c.backlog.begin() + 1);
        [[fallthrough]];
      case SessionRounds::Commit::kAppended:
        c.backlog.push_back(value);
    }
    EXPECT_LE(me.rounds.backlog(z).size(), static_cast<std::size_t>(o_.backlog_max));
    c.last = value;
    std::fill(c.in.begin(), c.in.end(), 0);
  }
  void judge_round(int z, std::uint32_t round) {
    const Entry& entry = log_[static_cast<std::size_t>(z)][round - 1];
    std::vector<Sum> expected(static_cast<std::size_t>(o_.segments));
    for (int w = entry.set.set().next(); w >= 0; w = entry.set.set().next(w + 1)) {
      const IterationRange range = entry.set.of(w);
      for (Iteration t = range.first; t <= range.last; ++t) {
        ASSERT_TRUE(logged_.insert({w, t, z}).second) << "worker " << w << " iteration " << t << " twice";
        for (int g = 0; g < o_.segments; ++g) expected[static_cast<std::size_t>(g)] += gradient(w, t, z, g);
      }
    }
    ASSERT_EQ(entry.value, expected) << "colayer " << z << " round " << round;
  }

  // --- Deaths ---
  void die(int w) {
    if (live_.count() == 1 || !live_.has(w)) return;
    live_.remove(w);
    for (int j = live_.next(); j >= 0; j = live_.next(j + 1)) {
      schedule(now_ + some(o_.delay_max), [=, this] {
        if (!live_.has(j) || !at(j).rounds.members().has(w)) return;  // dead, or in an epoch without w already
        at(j).rounds.freeze();
        at(j).frozen = true;
        agree();
      });
    }
  }
  // Once all survivors have stopped they compare how far they got, and go on in a new epoch.
  void agree() {
    for (int j = live_.next(); j >= 0; j = live_.next(j + 1)) {
      if (!at(j).frozen) return;
    }
    std::vector<std::uint32_t> newest(static_cast<std::size_t>(o_.colayers));
    std::vector<int> holder(static_cast<std::size_t>(o_.colayers));
    Iteration ahead = 0;
    for (int j = live_.next(); j >= 0; j = live_.next(j + 1)) ahead = std::max(ahead, at(j).rounds.iteration());
    for (int z = 0; z < o_.colayers; ++z) {
      for (int j = live_.next(); j >= 0; j = live_.next(j + 1)) {
        if (at(j).rounds.next_round(z) <= newest[static_cast<std::size_t>(z)]) continue;
        newest[static_cast<std::size_t>(z)] = at(j).rounds.next_round(z);
        holder[static_cast<std::size_t>(z)] = j;
      }
    }
    // The logs of those who died with what nobody else has end with them.
    for (int z = 0; z < o_.colayers; ++z) {
      auto& log = log_[static_cast<std::size_t>(z)];
      while (log.size() >= newest[static_cast<std::size_t>(z)]) {
        const Contributors& set = log.back().set;
        for (int w = set.set().next(); w >= 0; w = set.set().next(w + 1)) {
          for (Iteration t = set.of(w).first; t <= set.of(w).last; ++t) logged_.erase({w, t, z});
        }
        log.pop_back();
      }
    }
    plan();
    ++epoch_;
    for (int j = live_.next(); j >= 0; j = live_.next(j + 1)) {
      at(j).rounds.regroup(live_, ahead);
      recover(j, newest, holder);
    }
    for (int j = live_.next(); j >= 0; j = live_.next(j + 1)) {
      at(j).frozen = false;
      const bool again = at(j).rounds.resume(epoch_);
      if (again || at(j).waits) step(j);
      start_due(j);
    }
  }
  void recover(int j, const std::vector<std::uint32_t>& newest, const std::vector<int>& holder) {
    for (int z = 0; z < o_.colayers; ++z) {
      Colayer& c = at(j, z);
      c.box.clear();
      switch (at(j).rounds.recover(now_, z, newest[static_cast<std::size_t>(z)])) {
        case SessionRounds::Recovery::kNothing:
          break;
        case SessionRounds::Recovery::kFetchLast: {
          const int from = holder[static_cast<std::size_t>(z)];
          commit(j, z, at(from).rounds.last(z), at(from, z).last);
          break;
        }
        case SessionRounds::Recovery::kReturnInput:
          for (int g = 0; g < o_.segments; ++g) c.acc[static_cast<std::size_t>(g)] += c.in[static_cast<std::size_t>(g)];
          break;
        case SessionRounds::Recovery::kDropInput:
          break;
        case SessionRounds::Recovery::kInconsistent:
          FAIL() << "worker " << j << " colayer " << z;
      }
    }
  }

  void judge_end() {
    for (int w = live_.next(); w >= 0; w = live_.next(w + 1)) {
      std::uint64_t waiting = 0;
      for (int z = 0; z < o_.colayers; ++z) {
        EXPECT_EQ(at(w).rounds.next_round(z), rounds(z) + 1) << "worker " << w << " did not end its log";
        EXPECT_FALSE(at(w).rounds.joined(z)) << "worker " << w << " waits in a round of colayer " << z;
        waiting += static_cast<std::uint64_t>(at(w).rounds.waiting(z).count());
      }
      EXPECT_EQ(waiting, 0u);
      std::uint64_t in_rounds = 0;
      for (const auto& [j, t, z] : logged_) in_rounds += j == w ? 1 : 0;
      EXPECT_EQ(in_rounds + at(w).rounds.dropped(), at(w).pushes) << "worker " << w << ": gradients lost or invented";
      if (o_.thresholds.at_bound == AtBound::kWait && o_.switches.empty()) {
        EXPECT_EQ(at(w).rounds.dropped(), 0u);
      }
    }
  }

  ToyOptions o_;
  Random random_;
  Nanos now_;
  std::uint64_t order_ = 0;
  std::uint64_t handled_ = 0;
  std::priority_queue<Event> events_;
  WorkerSet live_;
  WorkerSet planned_;  // members of the running epoch's trees
  std::uint32_t epoch_ = 1;
  bool notices_ = false;
  int notices_sent_ = 0;
  std::vector<std::vector<int>> parent_;
  std::vector<Worker> workers_;
  std::vector<std::vector<Entry>> log_;
  std::set<std::tuple<int, Iteration, int>> logged_;
  Iteration newest_ = 0;
  std::uint64_t iterations_done_ = 0;
  int payload_pieces_ = 0;
  int null_pieces_ = 0;
  int pulls_ = 0;
  int refused_ = 0;
  int stalls_ = 0;
  int went_on_ = 0;
};

}  // namespace canarynet::sync
