#include "sync/ripples.h"

#include <algorithm>
#include <utility>

namespace canarynet::sync {

GroupGenerator::GroupGenerator(const Options& options, Random* random)
    : options_(options),
      random_(random),
      // A worker is in two groups of one division at most, and waits for one of its own in the other modes.
      groups_(2 * options.host_of.size() + 1),
      buffered_(options.host_of.size()),
      questions_(options.host_of.size()),
      done_(options.host_of.size()),
      come_(workers()),
      reopened_(workers()),
      waiting_(workers()),
      locked_(workers()),
      alive_(WorkerSet::all(workers())),
      idle_(workers()),
      blocked_(workers()) {
  for (auto& group : groups_) group.members = group.working = group.told = WorkerSet(workers());
  order_.reserve(groups_.size());
  pool_.reserve(options.host_of.size());
}

GroupGenerator::Group* GroupGenerator::make(int caller) {
  const auto slot = std::find_if(groups_.begin(), groups_.end(), [](const Group& g) { return g.number == 0; });
  CANARY_CHECK(slot != groups_.end(), "more groups than workers can wait for");
  slot->number = next_number_++;
  slot->members.clear();
  slot->caller = caller;
  slot->running = slot->recalled = false;
  order_.push_back(static_cast<std::size_t>(slot - groups_.begin()));
  return &*slot;
}

void GroupGenerator::free(std::size_t at) {
  Group& group = groups_[order_[at]];
  for (int w = group.members.next(); w >= 0; w = group.members.next(w + 1)) {
    --buffered_[static_cast<std::size_t>(w)];
    if (group.running) locked_.remove(w);
  }
  group.number = 0;
  order_.erase(order_.begin() + static_cast<std::ptrdiff_t>(at));
}

void GroupGenerator::add(Group* group, int worker) {
  group->members.add(worker);
  ++buffered_[static_cast<std::size_t>(worker)];
}

std::size_t GroupGenerator::mates_from(std::size_t from, const WorkerSet& group) {
  if (options_.meetings.everybody()) return pool_.size() - from;
  const auto begin = pool_.begin() + static_cast<std::ptrdiff_t>(from);
  const auto end = std::partition(begin, pool_.end(), [&](int w) { return options_.meetings.meets(w, group); });
  return static_cast<std::size_t>(end - begin);
}

void GroupGenerator::answer_alone(int worker, Answers* answers) {
  waiting_.remove(worker);
  answers->push_back({Answer::Kind::kAlone, worker, 0, nullptr});
}

void GroupGenerator::serve_left_over(Answers* answers) {
  if (options_.mode != Mode::kSmart) return;
  for (int w = waiting_.next(); w >= 0; w = waiting_.next(w + 1)) {
    if (buffered_[static_cast<std::size_t>(w)] == 0) divide(w);
    if (buffered_[static_cast<std::size_t>(w)] == 0) answer_alone(w, answers);
  }
}

void GroupGenerator::asked(Nanos, const Question& question, Answers* answers) {
  const int w = question.worker;
  if (w < 0 || w >= workers() || !alive_.has(w)) return;
  come_.add(w);
  if (question.kind == Question::Kind::kDone) {
    for (std::size_t i = 0; i < order_.size(); ++i) {
      Group& group = groups_[order_[i]];
      if (group.number != question.number || !group.running || !group.working.has(w)) continue;
      group.working.remove(w);
      if (group.working.empty()) free(i);
      break;
    }
    serve_left_over(answers);
    return start(answers);
  }
  if (question.kind != Question::Kind::kGroup || waiting_.has(w)) return;
  ++questions_[static_cast<std::size_t>(w)];
  waiting_.add(w);
  const std::size_t before = order_.size();
  if (options_.mode != Mode::kSmart) {
    make_random(w);
  } else if (buffered_[static_cast<std::size_t>(w)] == 0) {
    divide(w);
  }
  // Without a group now (no mate, or all too slow) it would wait for nothing.
  const bool has_one =
      options_.mode == Mode::kSmart ? buffered_[static_cast<std::size_t>(w)] > 0 : order_.size() > before;
  if (!has_one) return answer_alone(w, answers);
  start(answers);
}

void GroupGenerator::make_random(int caller) {
  pool_.clear();
  for (int w = alive_.next(); w >= 0; w = alive_.next(w + 1)) {
    if (w != caller && (options_.mode != Mode::kPairs || passive(w)) && may_be_free(w)) pool_.push_back(w);
  }
  if (pool_.empty()) return;
  const std::size_t mates = options_.mode == Mode::kPairs ? 1 : static_cast<std::size_t>(options_.group_size - 1);
  Group* group = make(caller);
  add(group, caller);
  for (std::size_t i = 0; i < std::min(mates, pool_.size()); ++i) {
    const std::size_t drawn_from = mates_from(i, group->members);
    if (drawn_from == 0) break;
    std::swap(pool_[i], pool_[i + random_->below(drawn_from)]);
    add(group, pool_[i]);
  }
  if (group->members.count() == 1) free(order_.size() - 1);
}

void GroupGenerator::divide(int caller) {
  idle_.clear();
  for (int w = alive_.next(); w >= 0; w = alive_.next(w + 1)) {
    if (buffered_[static_cast<std::size_t>(w)] != 0) continue;
    const std::int64_t behind = questions_[static_cast<std::size_t>(caller)] - questions_[static_cast<std::size_t>(w)];
    if (behind < options_.slowdown_threshold && may_be_free(w)) idle_.add(w);
  }
  if (!options_.inter_intra) {
    pool_.clear();
    for (int w = idle_.next(); w >= 0; w = idle_.next(w + 1)) pool_.push_back(w);
    return make_groups_of_pool();
  }
  const auto host = [this](int w) { return options_.host_of[static_cast<std::size_t>(w)]; };
  const auto is_head = [&](int w) {  // the lowest idle worker of its host
    for (int v = idle_.next(); v < w; v = idle_.next(v + 1)) {
      if (host(v) == host(w)) return false;
    }
    return true;
  };
  pool_.clear();
  for (int w = idle_.next(); w >= 0; w = idle_.next(w + 1)) {
    if (is_head(w)) pool_.push_back(w);
  }
  make_groups_of_pool();
  for (int head = idle_.next(); head >= 0; head = idle_.next(head + 1)) {
    if (!is_head(head)) continue;
    pool_.clear();
    for (int w = idle_.next(head + 1); w >= 0; w = idle_.next(w + 1)) {
      if (host(w) == host(head)) pool_.push_back(w);
    }
    make_groups_of_pool();
    if (pool_.empty()) continue;
    Group* intra = make(-1);
    add(intra, head);
    for (const int w : pool_) add(intra, w);
  }
}

void GroupGenerator::make_groups_of_pool() {
  const std::size_t size = pool_.size();
  if (size < 2) return;
  for (std::size_t i = size; i > 1; --i) std::swap(pool_[i - 1], pool_[random_->below(i)]);
  const auto wanted = static_cast<std::size_t>(options_.group_size);
  const std::size_t groups = std::max<std::size_t>(1, std::min((size + wanted - 1) / wanted, size / 2));
  if (!options_.meetings.everybody()) return make_groups_that_meet(static_cast<int>((size + groups - 1) / groups));
  for (std::size_t g = 0; g < groups; ++g) {
    Group* group = make(-1);
    for (std::size_t i = size * g / groups; i < size * (g + 1) / groups; ++i) add(group, pool_[i]);
  }
}

// Each group grows by workers that meet it, to `most`. Who is left without a mate joins a group made before, or none.
void GroupGenerator::make_groups_that_meet(int most) {
  const std::size_t first = order_.size();
  for (std::size_t at = 0; at < pool_.size();) {
    Group* group = make(-1);
    add(group, pool_[at++]);
    while (group->members.count() < most && mates_from(at, group->members) > 0) add(group, pool_[at++]);
    if (group->members.count() > 1) continue;
    const int single = group->members.next();
    free(order_.size() - 1);
    for (std::size_t i = first; i < order_.size(); ++i) {
      Group& other = groups_[order_[i]];
      if (!options_.meetings.meets(single, other.members)) continue;
      add(&other, single);
      break;
    }
  }
}

void GroupGenerator::start(Answers* answers) {
  blocked_ = locked_;
  for (const std::size_t index : order_) {
    Group& group = groups_[index];
    if (group.running) continue;
    bool ready = !group.members.meets(blocked_);
    if (options_.mode == Mode::kSmart) {
      for (int w = group.members.next(); w >= 0 && ready; w = group.members.next(w + 1)) ready = waiting_.has(w);
    }
    // Whoever is in a group that waits is kept for it: an order that all of its workers share can't deadlock.
    blocked_.unite(group.members);
    if (!ready) continue;
    group.running = true;
    group.working = group.members;
    locked_.unite(group.members);
    for (int w = group.members.next(); w >= 0; w = group.members.next(w + 1)) {
      const bool requested = options_.mode == Mode::kSmart || w == group.caller;
      if (requested) waiting_.remove(w);
      answers->push_back({Answer::Kind::kGroup, w, group.number, &group.members, requested});
    }
  }
}

void GroupGenerator::recall(Nanos, const Recollection& r) {
  if (r.worker < 0 || r.worker >= workers() || !alive_.has(r.worker)) return;
  successor_ = true;
  if (!r.leaves) come_.add(r.worker);
  next_number_ = std::max(next_number_, kNumbersLeft);
  if (!r.leaves && r.open && r.question != nullptr && r.question->kind == Question::Kind::kGroup) {
    waiting_.add(r.worker);
    reopened_.add(r.worker);
  }
  if (r.told == nullptr || r.told->kind != Answer::Kind::kGroup) return;
  if (r.told->number <= 0 || r.told->number > INT64_MAX / 2) return;
  next_number_ = std::max(next_number_, r.told->number + kNumbersLeft);
  const auto known =
      std::find_if(order_.begin(), order_.end(), [&](std::size_t g) { return groups_[g].number == r.told->number; });
  Group* group = known != order_.end() ? &groups_[*known] : nullptr;
  // It is in one at a time, so those before this one are done there. Others may have them before them still (one that
  // leaves is waited for by nobody), and say so later.
  std::int64_t& done = done_[static_cast<std::size_t>(r.worker)];
  done = r.told->done ? r.told->number : r.told->number - 1;
  for (const std::size_t g : order_) {
    if (groups_[g].number <= done) groups_[g].working.remove(r.worker);
  }
  if (r.told->done) return;
  if (group == nullptr) group = recall_group(*r.told);
  // The others are in other groups by now. It is in this one until it says that it is not.
  if (group == nullptr)
    group = recall_group({Answer::Kind::kGroup, r.told->number, {static_cast<std::uint32_t>(r.worker)}, false});
  if (group != nullptr) group->told.add(r.worker);
}

// nullptr: it can't be, beside what others have told.
GroupGenerator::Group* GroupGenerator::recall_group(const Recollection::Told& told) {
  blocked_.clear();
  for (const std::uint32_t w : told.members) {
    if (w >= options_.host_of.size()) return nullptr;
    blocked_.add(static_cast<int>(w));
  }
  if (blocked_.meets(locked_) || order_.size() == groups_.size()) return nullptr;
  Group* const group = make(-1);
  --next_number_;
  group->number = told.number;
  group->running = group->recalled = true;
  group->told.clear();
  group->members = group->working = blocked_;
  group->working.intersect(alive_);
  locked_.unite(blocked_);
  for (const std::uint32_t w : told.members) {
    ++buffered_[w];
    if (told.number <= done_[w]) group->working.remove(static_cast<int>(w));
  }
  return group;
}

void GroupGenerator::recalled(Nanos, Answers* answers) {
  for (std::size_t i = 0; i < order_.size();) {
    Group& group = groups_[order_[i]];
    // Some have not heard of it: their answers went with the coordinator before.
    const bool news = std::exchange(group.recalled, false);
    for (int w = group.working.next(); w >= 0 && news; w = group.working.next(w + 1)) {
      if (group.told.has(w)) continue;
      const bool requested = waiting_.has(w);
      waiting_.remove(w);
      answers->push_back({Answer::Kind::kGroup, w, group.number, &group.members, requested});
    }
    if (group.running && group.working.empty()) {
      free(i);
    } else {
      ++i;
    }
  }
  for (int w = reopened_.next(); w >= 0; w = reopened_.next(w + 1)) {
    if (!waiting_.has(w) || options_.mode == Mode::kSmart) continue;
    const std::size_t before = order_.size();
    make_random(w);
    if (order_.size() == before) answer_alone(w, answers);
  }
  reopened_.clear();
  serve_left_over(answers);
  start(answers);
}

void GroupGenerator::died(Nanos, int worker, Answers* answers) {
  if (!alive_.has(worker)) return;
  alive_.remove(worker);
  waiting_.remove(worker);
  for (std::size_t i = 0; i < order_.size();) {
    Group& group = groups_[order_[i]];
    if (!group.members.has(worker)) {
      ++i;
      continue;
    }
    if (group.running) {
      // The survivors' averaging ends without it, or fails; either way they say so. `members` stays as they know it.
      group.working.remove(worker);
      if (group.working.empty()) {
        free(i);
      } else {
        ++i;
      }
      continue;
    }
    group.members.remove(worker);
    --buffered_[static_cast<std::size_t>(worker)];
    const bool pointless =
        group.members.count() < 2 || group.caller == worker || !options_.meetings.connected(group.members);
    if (!pointless) {
      ++i;
      continue;
    }
    idle_ = group.members;
    const int caller = group.caller;
    free(i);
    for (int w = idle_.next(); w >= 0; w = idle_.next(w + 1)) {
      // Its question is answered by another group of its buffer, if there is one.
      const bool asked = options_.mode == Mode::kSmart ? buffered_[static_cast<std::size_t>(w)] == 0 : w == caller;
      if (asked && waiting_.has(w)) answer_alone(w, answers);
    }
  }
  serve_left_over(answers);
  start(answers);
}

}  // namespace canarynet::sync
