// The agreement after a death, in every order in which things can happen, on small cases; and in some orders on larger
// ones.
//
// The model: a round is one message of each member to each other, which says what the member contributes; whoever has
// the messages of all members has committed it. Messages between two workers keep their order. What a dead worker has
// sent arrives until the receiver learns of the death.
#include "sync/death_agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/random.h"

namespace canarynet::sync {
namespace {

struct Setting {
  int workers = 3;
  int colayers = 1;
  std::vector<int> pushes;  // gradients of each worker, of every colayer
  int deaths = 1;
  int committed =
      0;  // so many, from worker 1 on, have committed a round of worker 0 at the beginning; 0: there is none
};

class Model {
 public:
  explicit Model(const Setting& setting) : n_(setting.workers), k_(setting.colayers), deaths_left_(setting.deaths) {
    for (int w = 0; w < n_; ++w) {
      workers_.emplace_back(w, n_, k_);
      for (Colayer& c : at(w).colayers) {
        c.pushes_left = setting.pushes[static_cast<std::size_t>(w)];
        c.joins.resize(static_cast<std::size_t>(n_), kNone);
      }
    }
    wires_.resize(static_cast<std::size_t>(n_ * n_));
  }

  // Worker 0 pushes, all others hear of it, and some of them hear of all.
  void begin_round(int committed) {
    run({Action::Kind::kPush, 0, 0});
    for (int w = 1; w < n_; ++w) run({Action::Kind::kDeliver, 0, w});
    for (int w = 1; w <= committed; ++w) {
      for (int from = 1; from < n_; ++from) {
        if (from != w) run({Action::Kind::kDeliver, from, w});
      }
    }
  }

  // What can happen now.
  struct Action {
    enum class Kind : std::uint8_t { kPush, kDeliver, kDie, kLearn } kind;
    int a, b;
  };
  std::vector<Action> actions() const {
    std::vector<Action> all;
    for (int w = 0; w < n_; ++w) {
      if (!at(w).alive) continue;
      for (int z = 0; z < k_; ++z) {
        if (!at(w).stopped && at(w, z).pushes_left > 0) all.push_back({Action::Kind::kPush, w, z});
      }
      if (deaths_left_ > 0 && living() > 1) all.push_back({Action::Kind::kDie, w, 0});
      for (int from = 0; from < n_; ++from) {
        if (!wire(from, w).empty()) all.push_back({Action::Kind::kDeliver, from, w});
        if (!at(from).alive && !at(w).agreement.dead().has(from)) all.push_back({Action::Kind::kLearn, from, w});
      }
    }
    return all;
  }
  void run(const Action& action) {
    switch (action.kind) {
      case Action::Kind::kPush: {
        Colayer& c = at(action.a, action.b);
        const std::uint64_t more = gradient(action.a, --c.pushes_left);
        c.acc |= more;
        c.pushed |= more;
        open(action.a, action.b);
        break;
      }
      case Action::Kind::kDeliver: {
        const Message message = wire(action.a, action.b).front();
        wire(action.a, action.b).pop_front();
        arrive(action.b, action.a, message);
        break;
      }
      case Action::Kind::kDie:
        at(action.a).alive = false;
        --deaths_left_;
        for (int from = 0; from < n_; ++from) wire(from, action.a).clear();
        break;
      case Action::Kind::kLearn:
        wire(action.a, action.b).clear();
        if (at(action.b).agreement.died(action.a, standing(action.b))) {
          stop(action.b);
          say(action.b);
        }
        break;
    }
  }

  // "": everything holds.
  std::string judge() const {
    for (int w = 0; w < n_; ++w) {
      if (!at(w).alive) continue;
      if (!at(w).wrong.empty()) return "worker " + std::to_string(w) + ": " + at(w).wrong;
      for (int z = 0; z < k_; ++z) {
        const Colayer& c = at(w, z);
        std::uint64_t once = 0;
        for (const Round& r : c.log) {
          if ((once & r.gradients) != 0) return "a gradient is in two rounds";
          once |= r.gradients;
        }
        const std::uint64_t waits = c.acc | (c.joined ? c.in : 0);
        if ((once & waits) != 0) return "a gradient is in a round and waits for one";
        if ((c.acc & (c.joined ? c.in : 0)) != 0) return "a gradient waits twice";
        if (((once & all_of(w)) | waits) != c.pushed) return "a gradient of worker " + std::to_string(w) + " is lost";
        for (int v = 0; v < w; ++v) {
          if (!at(v).alive) continue;
          const std::size_t both = std::min(c.log.size(), at(v, z).log.size());
          for (std::size_t m = 0; m < both; ++m) {
            if (!(c.log[m] == at(v, z).log[m])) return "logs differ in round " + std::to_string(m + 1);
          }
        }
      }
    }
    return "";
  }
  // Of a state in which nothing can happen any more.
  std::string judge_end() const {
    int first = -1;
    for (int w = 0; w < n_; ++w) {
      if (!at(w).alive) continue;
      first = first < 0 ? w : first;
      if (at(w).stopped) return "worker " + std::to_string(w) + " waits for ever";
      for (int z = 0; z < k_; ++z) {
        if (at(w, z).joined || at(w, z).acc != 0) return "worker " + std::to_string(w) + " waits in a round";
        if (!(at(w, z).log == at(first, z).log)) return "logs end differently";
      }
      if (!at(w).held.empty()) return "worker " + std::to_string(w) + " has messages of a round that never began";
    }
    return "";
  }
  // All of the state, for telling states apart.
  std::string text() const {
    std::string s;
    const auto put = [&](std::uint64_t v) { s.append(reinterpret_cast<const char*>(&v), sizeof v); };
    const auto put_message = [&](const Message& m) {
      put(static_cast<std::uint64_t>(m.kind) << 32 | static_cast<std::uint64_t>(m.z));
      put(m.epoch);
      put(m.round);
      put(m.value.epoch);
      put(m.value.gradients);
      put(m.dead.bits());
      for (const std::uint32_t r : m.standing.next_rounds) put(r);
    };
    put(static_cast<std::uint64_t>(deaths_left_));
    for (int w = 0; w < n_; ++w) {
      const Worker& me = at(w);
      put((me.alive ? 1u : 0u) | (me.stopped ? 2u : 0u) | (me.handed ? 4u : 0u));
      put(me.epoch);
      put(me.agreement.dead().bits());
      put(me.agreement.active() ? 1 : 0);
      put(me.reports);
      for (const Colayer& c : me.colayers) {
        put(static_cast<std::uint64_t>(c.pushes_left) << 1 | (c.joined ? 1 : 0));
        put(c.acc);
        put(c.in);
        put(c.log.size());
        for (const Round& r : c.log) {
          put(r.epoch);
          put(r.gradients);
        }
        for (const std::uint64_t j : c.joins) put(j);
      }
      put(me.held.size());
      for (const auto& [from, m] : me.held) {
        put(static_cast<std::uint64_t>(from));
        put_message(m);
      }
    }
    for (const auto& queue : wires_) {
      put(queue.size());
      for (const Message& m : queue) put_message(m);
    }
    return s;
  }

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};  // a member that has not said what it contributes
  struct Round {
    std::uint64_t epoch = 0, gradients = 0;
    bool operator==(const Round&) const = default;
  };
  struct Message {
    enum class Kind : std::uint8_t { kJoin, kReport, kLast } kind = Kind::kJoin;
    int z = 0;
    std::uint32_t epoch = 0, round = 0;
    Round value;     // kJoin: what the sender contributes; kLast: the round
    WorkerSet dead;  // kReport, kLast
    DeathAgreement::Standing standing;
  };
  struct Colayer {
    int pushes_left = 0;
    std::uint64_t acc = 0, in = 0, pushed = 0;
    bool joined = false;
    std::vector<Round> log;
    std::vector<std::uint64_t> joins;  // of the running round, per member
  };
  struct Worker {
    Worker(int w, int workers, int k) : agreement(w, workers, k), colayers(static_cast<std::size_t>(k)) {}
    DeathAgreement agreement;
    std::vector<Colayer> colayers;
    bool alive = true, stopped = false;
    bool handed = false;  // since it has decided
    std::uint32_t epoch = 1;
    std::uint64_t reports = 0;                  // whose reports count, with what they say: a hash
    std::vector<std::pair<int, Message>> held;  // of rounds and epochs to come
    std::string wrong;
  };

  Worker& at(int w) { return workers_[static_cast<std::size_t>(w)]; }
  const Worker& at(int w) const { return workers_[static_cast<std::size_t>(w)]; }
  Colayer& at(int w, int z) { return at(w).colayers[static_cast<std::size_t>(z)]; }
  const Colayer& at(int w, int z) const { return at(w).colayers[static_cast<std::size_t>(z)]; }
  std::deque<Message>& wire(int from, int to) { return wires_[static_cast<std::size_t>(from * n_ + to)]; }
  const std::deque<Message>& wire(int from, int to) const { return wires_[static_cast<std::size_t>(from * n_ + to)]; }
  int living() const {
    return static_cast<int>(std::count_if(workers_.begin(), workers_.end(), [](const auto& w) { return w.alive; }));
  }
  static std::uint64_t gradient(int w, int which) { return std::uint64_t{1} << (8 * w + which); }
  static std::uint64_t all_of(int w) { return std::uint64_t{0xff} << (8 * w); }

  DeathAgreement::Standing standing(int w) const {
    DeathAgreement::Standing own;
    for (int z = 0; z < k_; ++z) own.next_rounds.push_back(next_round(w, z));
    own.iteration = 1;
    return own;
  }
  std::uint32_t next_round(int w, int z) const { return static_cast<std::uint32_t>(at(w, z).log.size()) + 1; }

  // --- rounds ---
  void open(int w, int z) {
    if (!at(w).stopped && !at(w, z).joined && at(w, z).acc != 0) join(w, z);
  }
  void join(int w, int z) {
    Colayer& c = at(w, z);
    c.joined = true;
    c.in = std::exchange(c.acc, 0);
    c.joins.assign(static_cast<std::size_t>(n_), kNone);
    c.joins[static_cast<std::size_t>(w)] = c.in;
    Message m;
    m.z = z;
    m.epoch = at(w).epoch;
    m.round = next_round(w, z);
    m.value.gradients = c.in;
    for (int to = 0; to < n_; ++to) {
      if (to != w && !at(w).agreement.dead().has(to)) send(w, to, m);
    }
    complete(w, z);
  }
  void complete(int w, int z) {
    Colayer& c = at(w, z);
    Round round{at(w).epoch, 0};
    for (int j = 0; j < n_; ++j) {
      if (at(w).agreement.dead().has(j)) continue;
      const std::uint64_t theirs = c.joins[static_cast<std::size_t>(j)];
      if (theirs == kNone) return;
      round.gradients |= theirs;
    }
    commit(w, z, round);
    look_at_held(w);
    open(w, z);
  }
  void commit(int w, int z, const Round& round) {
    Colayer& c = at(w, z);
    if (!c.joined || (c.in & ~round.gradients) != 0) at(w).wrong = "a round without its gradient";
    c.log.push_back(round);
    c.joined = false;
    c.in = 0;
    c.joins.assign(static_cast<std::size_t>(n_), kNone);
  }
  void on_join(int w, int from, const Message& m) {
    Worker& me = at(w);
    if (m.epoch < me.epoch || at(w).agreement.dead().has(from)) return;
    const bool later = m.epoch > me.epoch || m.round > next_round(w, m.z);
    if (later) {
      if (m.epoch == me.epoch && m.round != next_round(w, m.z) + 1) me.wrong = "two rounds behind";
      me.held.push_back({from, m});
      return;
    }
    if (me.stopped) return;
    if (m.round != next_round(w, m.z)) {
      me.wrong = "a message of a round that is over";
      return;
    }
    if (!at(w, m.z).joined) join(w, m.z);
    at(w, m.z).joins[static_cast<std::size_t>(from)] = m.value.gradients;
    complete(w, m.z);
  }
  void look_at_held(int w) {
    const auto held = std::exchange(at(w).held, {});
    for (const auto& [from, m] : held) on_join(w, from, m);
  }

  // --- the agreement ---
  void send(int from, int to, const Message& m) {
    if (at(to).alive) wire(from, to).push_back(m);
  }
  void stop(int w) {
    at(w).stopped = true;
    at(w).handed = false;
    at(w).reports = 0;
  }
  // Tells all who may live how far it got.
  void say(int w) {
    const Worker& me = at(w);
    Message m;
    m.kind = Message::Kind::kReport;
    m.dead = me.agreement.report().dead;
    m.standing = me.agreement.report().standing;
    for (int to = 0; to < n_; ++to) {
      if (to != w && !m.dead.has(to)) send(w, to, m);
    }
    go_on(w);
  }
  void arrive(int w, int from, const Message& m) {
    Worker& me = at(w);
    switch (m.kind) {
      case Message::Kind::kJoin:
        return on_join(w, from, m);
      case Message::Kind::kLast:
        if (!me.agreement.takes(from, m.dead, m.z, m.round, next_round(w, m.z))) return;
        commit(w, m.z, m.value);
        return go_on(w);
      case Message::Kind::kReport:
        break;
    }
    const auto heard = me.agreement.heard(from, {m.dead, m.standing}, standing(w));
    if (heard == DeathAgreement::Heard::kExpelled) me.wrong = "expelled alive";
    if (heard == DeathAgreement::Heard::kImpossible) me.wrong = "an impossible report";
    const bool says = heard == DeathAgreement::Heard::kSay;
    std::uint64_t hash = static_cast<std::uint64_t>(from) + 1;
    for (const std::uint32_t r : m.standing.next_rounds) hash = hash * 0x9e3779b97f4a7c15u + r;
    const bool counts = heard == DeathAgreement::Heard::kNoted || (says && m.dead == me.agreement.dead());
    if (says) stop(w);
    if (counts) me.reports ^= hash;
    if (says) {
      say(w);
    } else if (counts) {
      go_on(w);
    }
  }
  void go_on(int w) {
    Worker& me = at(w);
    if (!me.agreement.decided()) return;
    bool has_all = true;
    for (int z = 0; z < k_; ++z) {
      const WorkerSet lacking = me.agreement.lacking(z);
      for (int to = lacking.next(); !me.handed && to >= 0; to = lacking.next(to + 1)) {
        Message m;
        m.kind = Message::Kind::kLast;
        m.z = z;
        m.dead = me.agreement.dead();
        m.round = next_round(w, z) - 1;
        m.value = at(w, z).log.back();
        send(w, to, m);
      }
      has_all &= next_round(w, z) == me.agreement.next_round(z);
    }
    me.handed = true;
    if (!has_all) return;
    me.agreement.finish();
    me.stopped = false;
    me.handed = false;
    me.reports = 0;
    me.epoch = me.agreement.epoch();
    for (Colayer& c : me.colayers) {
      if (std::exchange(c.joined, false)) c.acc |= std::exchange(c.in, 0);
      c.joins.assign(static_cast<std::size_t>(n_), kNone);
    }
    look_at_held(w);
    for (int z = 0; z < k_; ++z) open(w, z);
  }

  int n_, k_, deaths_left_;
  std::vector<Worker> workers_;
  std::vector<std::deque<Message>> wires_;
};

std::string name_of(const Model::Action& a) {
  static constexpr const char* kNames[] = {"push", "deliver", "die", "learn"};
  return std::string(kNames[static_cast<int>(a.kind)]) + " " + std::to_string(a.a) + " " + std::to_string(a.b);
}

// Every state that can be reached. Returns how many there are; 0: something was wrong, and the way there is told.
std::size_t walk_all(const Setting& setting, std::size_t states_max) {
  struct Place {
    Model state;
    std::vector<Model::Action> left;
  };
  std::unordered_set<std::string> seen;
  std::vector<Place> way;
  std::vector<Model::Action> taken;
  const auto enter = [&](Model state) {
    auto all = state.actions();
    std::string wrong = state.judge();
    if (wrong.empty() &&
        std::none_of(all.begin(), all.end(), [](const auto& a) { return a.kind != Model::Action::Kind::kDie; }))
      wrong = state.judge_end();
    way.push_back({std::move(state), std::move(all)});
    if (wrong.empty()) return true;
    std::string told;
    for (const auto& a : taken) told += name_of(a) + "; ";
    ADD_FAILURE() << wrong << " after " << told;
    return false;
  };
  Model first(setting);
  if (setting.committed > 0) first.begin_round(setting.committed);
  seen.insert(first.text());
  if (!enter(std::move(first))) return 0;
  while (!way.empty()) {
    if (way.back().left.empty()) {
      way.pop_back();
      if (!taken.empty()) taken.pop_back();
      continue;
    }
    const Model::Action action = way.back().left.back();
    way.back().left.pop_back();
    Model next = way.back().state;
    next.run(action);
    if (!seen.insert(next.text()).second) continue;
    if (seen.size() > states_max) {
      ADD_FAILURE() << "more than " << states_max << " states";
      return 0;
    }
    taken.push_back(action);
    if (!enter(std::move(next))) return 0;
  }
  return seen.size();
}

TEST(DeathAgreement, HoldsInEveryOrderOfSmallCases) {
  std::vector<Setting> settings = {{2, 1, {2, 2}, 1}, {3, 1, {1, 1, 0}, 1}, {3, 1, {2, 0, 0}, 2}, {3, 2, {1, 0, 0}, 1}};
  if (std::getenv("CANARY_TEST_QUICK") == nullptr) {
    settings.insert(settings.end(), {{3, 1, {1, 1, 1}, 2}, {3, 1, {2, 1, 0}, 2}, {3, 2, {1, 0, 0}, 2}});
    settings.insert(settings.end(), {{4, 1, {1, 0, 0, 0}, 1, 1}, {4, 1, {1, 0, 0, 0}, 1, 2}});
  }
  if (std::getenv("CANARY_TEST_WHOLE") != nullptr)
    settings.insert(settings.end(), {{4, 1, {1, 0, 0, 0}, 2, 1}, {4, 1, {1, 0, 0, 0}, 2, 2}});
  for (const Setting& s : settings) {
    const std::size_t states = walk_all(s, 3'000'000);
    std::printf("%d workers, %d colayers, %d deaths, %d have committed: %zu states\n", s.workers, s.colayers, s.deaths,
                s.committed, states);
    ASSERT_NE(states, 0u);
  }
}

TEST(DeathAgreement, HoldsInSomeOrdersOfLargerCases) {
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    Random random(seed);
    Setting s;
    s.workers = 3 + static_cast<int>(random.below(5));
    s.colayers = 1 + static_cast<int>(random.below(3));
    s.deaths = static_cast<int>(random.below(static_cast<std::uint64_t>(s.workers)));
    for (int w = 0; w < s.workers; ++w) s.pushes.push_back(static_cast<int>(random.below(4)));
    Model model(s);
    for (int steps = 0;; ++steps) {
      ASSERT_LT(steps, 100'000) << "seed " << seed;
      auto actions = model.actions();
      // Deaths are rare, or there would be nothing to agree on.
      std::erase_if(actions,
                    [&](const auto& a) { return a.kind == Model::Action::Kind::kDie && random.below(30) != 0; });
      if (actions.empty()) {
        if (model.actions().empty() || random.below(2) == 0) break;
        continue;
      }
      model.run(actions[random.below(actions.size())]);
      ASSERT_EQ(model.judge(), "") << "seed " << seed;
    }
    const auto left = model.actions();
    const bool over =
        std::none_of(left.begin(), left.end(), [](const auto& a) { return a.kind != Model::Action::Kind::kDie; });
    ASSERT_EQ(over ? model.judge_end() : "", "") << "seed " << seed;
  }
}

TEST(DeathAgreement, ForeignReportsAreJudged) {
  using Heard = DeathAgreement::Heard;
  const DeathAgreement::Standing own{{5, 7}, 3};
  const auto dead = [](std::initializer_list<int> workers, int of = 4) {
    WorkerSet set(of);
    for (const int w : workers) set.add(w);
    return set;
  };
  DeathAgreement a(0, 4, 2);
  EXPECT_EQ(a.heard(1, {dead({}), own}, own), Heard::kImpossible) << "of nobody's death";
  EXPECT_EQ(a.heard(1, {dead({1}), own}, own), Heard::kImpossible) << "a dead worker speaks";
  EXPECT_EQ(a.heard(4, {dead({1}), own}, own), Heard::kImpossible) << "no worker";
  EXPECT_EQ(a.heard(0, {dead({1}), own}, own), Heard::kImpossible) << "oneself";
  EXPECT_EQ(a.heard(2, {dead({1}, 3), own}, own), Heard::kImpossible) << "of another session";
  EXPECT_EQ(a.heard(2, {dead({1}), {{5}, 3}}, own), Heard::kImpossible) << "a colayer is missing";
  EXPECT_EQ(a.heard(2, {dead({1}), {{5, 9}, 3}}, own), Heard::kImpossible) << "two rounds ahead";
  EXPECT_EQ(a.heard(2, {dead({1}), {{5, 7}, -1}}, own), Heard::kImpossible) << "an iteration below 0";
  EXPECT_FALSE(a.active());
  EXPECT_EQ(a.heard(2, {dead({0}), own}, own), Heard::kExpelled);
  EXPECT_EQ(a.heard(2, {dead({1}), {{4, 7}, 3}}, own), Heard::kSay);
  EXPECT_FALSE(a.decided());
  EXPECT_EQ(a.heard(2, {dead({1}), {{4, 7}, 3}}, own), Heard::kIgnored) << "said again";
  EXPECT_EQ(a.heard(3, {dead({1}), {{6, 7}, 8}}, own), Heard::kImpossible) << "two rounds ahead of worker 2";
  EXPECT_EQ(a.heard(1, {dead({3}), own}, own), Heard::kIgnored) << "the dead are not heard";
  EXPECT_FALSE(a.takes(2, dead({1, 3}), 0, 5, 5)) << "after other deaths";
  EXPECT_FALSE(a.takes(1, dead({1}), 0, 5, 5)) << "from the dead";
  EXPECT_FALSE(a.takes(2, dead({1}), 2, 5, 5)) << "of no colayer";
  EXPECT_FALSE(a.takes(2, dead({1}), 0, 6, 6)) << "a round that is not lacking here";
  EXPECT_EQ(a.heard(3, {dead({1}), {{5, 8}, 8}}, own), Heard::kNoted);
  ASSERT_TRUE(a.decided());
  EXPECT_EQ(a.next_round(0), 5u);
  EXPECT_EQ(a.next_round(1), 8u);
  EXPECT_EQ(a.newest(), 8);
  EXPECT_EQ(a.lacking(0), dead({2})) << "the lowest that has it hands it out";
  EXPECT_EQ(a.lacking(1), dead({})) << "worker 3 does";
  EXPECT_TRUE(a.takes(3, dead({1}), 1, 7, 7));
  EXPECT_EQ(a.heard(2, {dead({3}), {{4, 7}, 3}}, own), Heard::kSay) << "of another death: both are dead";
  EXPECT_EQ(a.report().dead, dead({1, 3}));
  EXPECT_EQ(a.epoch(), 3u);
}

}  // namespace
}  // namespace canarynet::sync
