#include "runtime/local_ranks.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <new>

#include "base/fork.h"

namespace canarynet {
namespace {

// Threads that meet at one address, until the last one has come.
struct Gathering {
  ContextOptions options;  // the first thread's; ranks: who has come
  bool complete = false;   // the last thread is joining for all
  bool over = false;
  Status failure;
  std::shared_ptr<Context> context;
  std::condition_variable changed;
};

// Outlives threads that outlive main; a forked child has joined nothing.
struct Registry {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Gathering>> open;  // by settings.join
  std::vector<std::pair<std::string, std::weak_ptr<Context>>>
      joined;  // for the sake of a clear answer to who comes again
};

std::string list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

Status failed(const std::string& text, int rank) {
  ErrorDetail detail;
  detail.rank = rank;
  detail.phase = "join";
  return {CANARY_JOIN, text, detail};
}

// With the mutex held.
void end(Registry& r, Gathering& g, const Status& failure, std::shared_ptr<Context> context) {
  const auto open = r.open.find(g.options.settings.join);
  if (open != r.open.end() && open->second.get() == &g) r.open.erase(open);
  g.context = std::move(context);
  g.over = true;
  g.failure = failure;
  g.changed.notify_all();
}

// Why this thread can't be one of the gathering's.
Status compare(const Gathering& g, const ContextOptions& mine) {
  const int rank = mine.ranks.front(), first = g.options.ranks.front();
  if (std::find(g.options.ranks.begin(), g.options.ranks.end(), rank) != g.options.ranks.end())
    return failed("rank " + std::to_string(rank) + " joins twice from this process", rank);
  if (mine.world_size != g.options.world_size) {
    return failed("threads of one process disagree: a world of " + std::to_string(g.options.world_size) + " for rank " +
                      std::to_string(first) + ", of " + std::to_string(mine.world_size) + " for rank " +
                      std::to_string(rank),
                  rank);
  }
  if (const auto other = g.options.settings.first_difference(mine.settings)) {
    return failed("threads of one process disagree: setting " + other->name + " is " + other->mine + " for rank " +
                      std::to_string(first) + ", " + other->theirs + " for rank " + std::to_string(rank),
                  rank);
  }
  return {};
}

Result<std::shared_ptr<Context>> create(ContextOptions options) {
  auto made = Context::create(std::move(options));
  if (!made.ok()) return made.status();
  return std::shared_ptr<Context>(made.take());
}

// The last one to come joins for all.
void join_for_all(Registry& r, Gathering& g, std::unique_lock<std::mutex>& lock) {
  g.complete = true;
  r.open.erase(g.options.settings.join);  // whoever comes now is one too many and meets others
  std::sort(g.options.ranks.begin(), g.options.ranks.end());
  lock.unlock();
  auto made = [&]() -> Result<std::shared_ptr<Context>> {
    try {
      auto joined = create(g.options);
      if (!joined.ok()) return joined;
      const std::lock_guard again(r.mutex);
      std::erase_if(r.joined, [](const auto& j) { return j.second.expired(); });
      r.joined.emplace_back(g.options.settings.join, joined.value());
      return joined;
    } catch (const std::bad_alloc&) {  // the others must not wait for ever
      return no_memory();
    }
  }();
  lock.lock();
  if (!made.ok()) return end(r, g, made.status(), nullptr);
  end(r, g, Status(), made.take());
}

}  // namespace

Result<std::shared_ptr<Context>> join_job(ContextOptions options) {
  const std::int64_t wanted = options.settings.local_ranks;
  if (wanted == 1) return create(std::move(options));
  if (wanted > options.world_size) {
    return Status(CANARY_INVALID_ARGUMENT, "local_ranks is " + std::to_string(wanted) + " in a world of " +
                                               std::to_string(options.world_size) + " (CANARY_LOCAL_RANKS)");
  }
  const int rank = options.ranks.front();
  Registry& r = process_wide<Registry>();
  std::unique_lock lock(r.mutex);
  for (const auto& [join, weak] : r.joined) {
    const auto context = weak.lock();
    if (context == nullptr || join != options.settings.join) continue;
    if (std::find(context->ranks().begin(), context->ranks().end(), rank) != context->ranks().end())
      return failed("rank " + std::to_string(rank) + " has joined from this process already", rank);
  }
  std::shared_ptr<Gathering>& open = r.open[options.settings.join];
  if (open == nullptr) {
    auto made = std::make_shared<Gathering>();
    made->options = options;
    open = std::move(made);
  } else if (const Status wrong = compare(*open, options); !wrong.ok()) {
    const std::shared_ptr<Gathering> keep = open;
    end(r, *keep, wrong, nullptr);
    return wrong;
  } else {
    open->options.ranks.push_back(rank);
  }
  const std::shared_ptr<Gathering> g = open;
  if (g->options.ranks.size() == static_cast<std::size_t>(wanted)) {
    join_for_all(r, *g, lock);
  } else {
    const auto limit = std::chrono::nanoseconds(options.settings.join_timeout.count);
    const bool in_time = g->changed.wait_for(lock, limit, [&] { return g->over || g->complete; });
    if (!in_time) {
      const std::size_t missing = static_cast<std::size_t>(wanted) - g->options.ranks.size();
      end(r, *g,
          failed(std::to_string(g->options.ranks.size()) + " of " + std::to_string(wanted) +
                     " local ranks came within " + std::to_string(options.settings.join_timeout.count / 1'000'000) +
                     " ms (" + list(g->options.ranks) + "): " + std::to_string(missing) + " more " +
                     (missing == 1 ? "thread" : "threads") +
                     " of this process must call canary_init, as local_ranks says (CANARY_LOCAL_RANKS)",
                 -1),
          nullptr);
    }
    g->changed.wait(lock, [&] { return g->over; });  // the last one's own limits bound this
  }
  if (!g->failure.ok()) return g->failure;
  return g->context;
}

void cannot_join(const std::string& join) {
  Registry& r = process_wide<Registry>();
  const std::lock_guard lock(r.mutex);
  for (auto at = r.open.begin(); at != r.open.end();) {
    const std::shared_ptr<Gathering> open = at++->second;
    if (open != nullptr && (join.empty() || open->options.settings.join == join)) end(r, *open, no_memory(), nullptr);
  }
}

}  // namespace canarynet
