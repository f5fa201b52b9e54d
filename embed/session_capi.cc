// The C ABI of sessions (engine/session_operations.cc does what they ask for).
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "canarynet/canarynet.h"
#include "embed/colayers.h"
#include "embed/context_handles.h"
#include "embed/last_error.h"
#include "engine/session.h"
#include "sync/policy_name.h"

using namespace canarynet;

// The engine writes a result from its first number on.
static_assert(sizeof(canary_session_result) - offsetof(canary_session_result, iteration) ==
              sizeof(port::SessionResult));
static_assert(offsetof(canary_session_result, overtime) - offsetof(canary_session_result, iteration) ==
              offsetof(port::SessionResult, overtime));
static_assert(offsetof(canary_session_result, gradients) - offsetof(canary_session_result, iteration) ==
              offsetof(port::SessionResult, gradients));

namespace {

// Programs that were built before there were codecs say this size.
constexpr std::size_t kWithoutCodecs = offsetof(canary_session_options, codec);
// And before sessions could go on after a death.
constexpr std::size_t kWithoutDeaths = offsetof(canary_session_options, at_death);
// And before steps went on with a quorum.
constexpr std::size_t kWithoutQuorum = offsetof(canary_session_options, quorum);
constexpr std::size_t kStateWithoutWorkers = offsetof(canary_session_state, workers);
constexpr std::size_t kStateWithoutQuorum = offsetof(canary_session_state, went_on);

bool has_codecs(const canary_session_options& o) { return o.struct_size >= kWithoutDeaths; }
bool has_deaths(const canary_session_options& o) { return o.struct_size >= kWithoutQuorum; }
bool has_quorum(const canary_session_options& o) { return o.struct_size == sizeof o; }
Status check_size(const canary_session_options& o) {
  const std::size_t sizes[] = {kWithoutCodecs, kWithoutDeaths, kWithoutQuorum, sizeof o};
  if (std::find(std::begin(sizes), std::end(sizes), o.struct_size) != std::end(sizes)) return {};
  return wrong_size(o.struct_size, sizeof o, "CANARY_SESSION_OPTIONS_INIT");
}

// The words of a command, of a session of so many colayers. What is out of range is said here where a word could not
// say it.
Status read(const canary_session_options* options, int colayers, std::vector<std::uint64_t>* words) {
  if (options == nullptr) return bad("options are NULL");
  const canary_session_options& o = *options;
  if (Status s = check_size(o); !s.ok()) return s;
  if (o.at_bound != CANARY_AT_BOUND_DROP && o.at_bound != CANARY_AT_BOUND_WAIT)
    return bad("at_bound " + std::to_string(o.at_bound) + " is not a canary_at_bound");
  if (o.staleness < CANARY_STALENESS_UNBOUNDED) return bad("a staleness bound of " + std::to_string(o.staleness));
  if (o.staleness_max < 0) return bad("a staleness_max of " + std::to_string(o.staleness_max));
  if (o.proportion < -1) return bad("a proportion of " + std::to_string(o.proportion) + " colayers");
  if (o.linger < CANARY_LINGER_USUAL) return bad("a linger of " + std::to_string(o.linger) + " ns");
  if (has_codecs(o) && o.reserved != 0)
    return bad("reserved is " + std::to_string(o.reserved) + ", expected 0 (use CANARY_SESSION_OPTIONS_INIT)");
  if (has_deaths(o) && o.at_death != CANARY_AT_DEATH_END && o.at_death != CANARY_AT_DEATH_GO_ON)
    return bad("at_death " + std::to_string(o.at_death) + " is not a canary_at_death");
  if (has_deaths(o) && o.reserved_2 != 0)
    return bad("reserved_2 is " + std::to_string(o.reserved_2) + ", expected 0 (use CANARY_SESSION_OPTIONS_INIT)");
  sync::SessionRounds::Options rounds;
  rounds.thresholds.staleness = o.staleness == CANARY_STALENESS_UNBOUNDED ? sync::Thresholds::kUnbounded : o.staleness;
  rounds.thresholds.proportion = o.proportion == -1 ? colayers : o.proportion;
  rounds.thresholds.at_bound = o.at_bound == CANARY_AT_BOUND_WAIT ? sync::AtBound::kWait : sync::AtBound::kDrop;
  if (has_quorum(o)) {
    rounds.thresholds.quorum = o.quorum;
    rounds.thresholds.absences = o.absences;
  }
  if (o.linger != CANARY_LINGER_USUAL) rounds.linger = Nanos{o.linger};
  rounds.staleness_max = o.staleness_max;
  rounds.backlog_max = o.backlog;
  *words = Session::words_of(rounds, has_deaths(o) && o.at_death == CANARY_AT_DEATH_GO_ON);
  return {};
}

// Hands a command over, waits for its result and tells it.
template <typename Make>
canary_status ask(canary_context& context, port::MemberId member, const Make& make) {
  return report(run_command(context, member, make));
}

canary_status step(const char* name, port::SessionStep what, canary_session* handle, float* sums, std::size_t count,
                   canary_session_result* result, canary_op** out) {
  return guarded([&]() -> canary_status {
    const Inside<canary_session> session(handle);
    if (!session) return HandlePool<canary_session>::refuse(name, handle);
    if (result == nullptr) return report(bad("result is NULL").wrap(name));
    if (result->struct_size != sizeof *result)
      return report(wrong_size(result->struct_size, sizeof *result, "CANARY_SESSION_RESULT_INIT").wrap(name));
    if (count > PTRDIFF_MAX / sizeof *sums)
      return report(bad("count " + std::to_string(count) + " is too large").wrap(name));
    canary_context& context = session.context();
    canary_op* const op = context.take_op(session->member, out != nullptr);
    auto* const to = reinterpret_cast<port::SessionResult*>(&result->iteration);
    const port::Command c = port::step(session->member, session->number, what, {sums, count}, to, op->ticket.id());
    const Status wrong = out == nullptr ? context.impl->run(c, op->ticket) : context.impl->submit(c);
    if (wrong.ok() && out != nullptr) {
      *out = HandlePool<canary_op>::open(*op);
      return CANARY_OK;
    }
    const canary_status code = wrong.ok() ? tell(*context.impl, op->ticket) : report(wrong);
    context.give_op(op);
    return code;
  });
}

}  // namespace

extern "C" {

CANARY_API canary_status canary_session_open(canary_group* handle, const canary_session_options* options,
                                             canary_session** session) {
  constexpr const char* kName = "session_open";
  return guarded([&]() -> canary_status {
    const Inside<canary_group> group(handle);
    if (!group) return HandlePool<canary_group>::refuse(kName, handle);
    if (session == nullptr) return report(bad("session is NULL").wrap(kName));
    std::vector<std::uint64_t> words;
    if (Status s = read(options, options != nullptr ? options->colayers : 0, &words); !s.ok())
      return report(s.wrap(kName));
    if (options->colayers < 1 || options->colayers > static_cast<int>(port::kColayersMax)) {
      return report(
          bad(std::to_string(options->colayers) + " colayers (1 to " + std::to_string(port::kColayersMax) + ")")
              .wrap(kName));
    }
    if (options->counts == nullptr) return report(bad("counts are NULL").wrap(kName));
    const std::uint32_t* const codecs = has_codecs(*options) ? options->codecs : nullptr;
    for (int z = 0; z < options->colayers; ++z) {
      words.push_back(options->counts[z]);
      words.push_back(codecs != nullptr ? codecs[z] : has_codecs(*options) ? options->codec : 0);
    }
    canary_context& context = group.context();
    Kept<canary_session> made(HandlePool<canary_session>::take());
    made->context = &context;
    made->member = group->member;
    made->number = options->number;
    made->colayers = options->colayers;
    made->workers = group->shape.size;
    {
      const std::lock_guard lock(context.mutex);
      context.sessions.reserve(context.sessions.size() + 1);
    }
    const canary_status code = ask(context, group->member, [&](auto ticket) {
      return port::open_session(group->member, options->number, words, ticket);
    });
    if (code != CANARY_OK) return code;
    const std::lock_guard lock(context.mutex);
    context.sessions.push_back(std::move(made));
    *session = HandlePool<canary_session>::open(*context.sessions.back());
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_session_colayers(canary_group* handle, const size_t* counts, const double* ready,
                                                 size_t tensors, size_t* ends, int* colayers) {
  constexpr const char* kName = "session_colayers";
  return guarded([&]() -> canary_status {
    const Inside<canary_group> group(handle);
    if (!group) return HandlePool<canary_group>::refuse(kName, handle);
    const auto refuse = [&](const Status& why) { return report(why.wrap(kName)); };
    if (counts == nullptr || ready == nullptr || ends == nullptr || colayers == nullptr)
      return refuse(bad("an argument is NULL"));
    if (tensors < 1 || tensors > CANARY_SESSION_TENSORS_MAX) {
      return refuse(
          bad(std::to_string(tensors) + " tensors (1 to " + std::to_string(CANARY_SESSION_TENSORS_MAX) + ")"));
    }
    constexpr std::size_t kMost = std::size_t{1} << 40;  // elements of all, far beyond any memory
    constexpr double kLongest = 1e6;                     // seconds
    std::size_t elements = 0;
    for (std::size_t i = 0; i < tensors; ++i) {
      if (counts[i] == 0) return refuse(bad("tensor " + std::to_string(i) + " has no elements"));
      if (counts[i] > kMost - elements)
        return refuse(bad("tensor " + std::to_string(i) + " makes the model too large"));
      elements += counts[i];
      if (!(ready[i] >= 0 && ready[i] <= kLongest))
        return refuse(bad("tensor " + std::to_string(i) + " is ready after " + std::to_string(ready[i]) + " s"));
    }
    const auto found =
        find_colayers({&group.context(), group->member, group->shape}, {counts, tensors}, {ready, tensors});
    if (!found.ok()) return refuse(found.status());
    std::copy(found.value().begin(), found.value().end(), ends);
    *colayers = static_cast<int>(found.value().size());
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_session_rule(const char* name, canary_session_options* options) {
  constexpr const char* kName = "session_rule";
  return guarded([&]() -> canary_status {
    if (name == nullptr || options == nullptr) return report(bad("an argument is NULL").wrap(kName));
    if (Status s = check_size(*options); !s.ok()) return report(s.wrap(kName));
    const auto spec = sync::parse_policy(name);
    if (!spec.ok()) return report(spec.status().wrap(kName));
    if (!spec.value().is_session()) {
      return report(bad("policy " + to_string(spec.value()) + " exchanges through no session: bsp, ssp, asp, canary do")
                        .wrap(kName));
    }
    const bool waits_for_all = spec.value().quorum == sync::Thresholds().quorum;
    if (!waits_for_all && !has_quorum(*options))
      return report(bad("options of this size have no quorum (use CANARY_SESSION_OPTIONS_INIT)").wrap(kName));
    // -1 stands for all colayers.
    const sync::Thresholds t = spec.value().thresholds(-1);
    options->at_bound = t.at_bound == sync::AtBound::kWait ? CANARY_AT_BOUND_WAIT : CANARY_AT_BOUND_DROP;
    options->staleness = t.staleness == sync::Thresholds::kUnbounded ? CANARY_STALENESS_UNBOUNDED : t.staleness;
    options->proportion = t.proportion;
    if (has_quorum(*options)) {
      options->quorum = t.quorum;
      options->absences = t.absences;
    }
    options->linger = spec.value().linger ? spec.value().linger->count : CANARY_LINGER_USUAL;
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_session_push(canary_session* handle, int colayer, const float* gradient, size_t count) {
  constexpr const char* kName = "session_push";
  return guarded([&]() -> canary_status {
    const Inside<canary_session> session(handle);
    if (!session) return HandlePool<canary_session>::refuse(kName, handle);
    if (count > PTRDIFF_MAX / sizeof *gradient)
      return report(bad("count " + std::to_string(count) + " is too large").wrap(kName));
    return ask(session.context(), session->member, [&](auto ticket) {
      return port::push(session->member, session->number, colayer, {gradient, count}, ticket);
    });
  });
}

CANARY_API canary_status canary_session_step(canary_session* session, float* sums, size_t count,
                                             canary_session_result* result, canary_op** op) {
  return step("session_step", port::SessionStep::kStep, session, sums, count, result, op);
}
CANARY_API canary_status canary_session_pull(canary_session* session, float* sums, size_t count,
                                             canary_session_result* result, canary_op** op) {
  return step("session_pull", port::SessionStep::kPull, session, sums, count, result, op);
}
CANARY_API canary_status canary_session_finish(canary_session* session, float* sums, size_t count,
                                               canary_session_result* result, canary_op** op) {
  return step("session_finish", port::SessionStep::kFinish, session, sums, count, result, op);
}

CANARY_API canary_status canary_session_set(canary_session* handle, const canary_session_options* options) {
  constexpr const char* kName = "session_set";
  return guarded([&]() -> canary_status {
    const Inside<canary_session> session(handle);
    if (!session) return HandlePool<canary_session>::refuse(kName, handle);
    std::vector<std::uint64_t> words;
    if (Status s = read(options, session->colayers, &words); !s.ok()) return report(s.wrap(kName));
    return ask(session.context(), session->member,
               [&](auto ticket) { return port::thresholds(session->member, session->number, words, ticket); });
  });
}

CANARY_API canary_status canary_session_read(canary_session* handle, canary_session_state* state) {
  constexpr const char* kName = "session_read";
  return guarded([&]() -> canary_status {
    const Inside<canary_session> session(handle);
    if (!session) return HandlePool<canary_session>::refuse(kName, handle);
    if (state == nullptr) return report(bad("state is NULL").wrap(kName));
    const std::size_t size = state->struct_size;
    if (size != sizeof *state && size != kStateWithoutWorkers && size != kStateWithoutQuorum)
      return report(wrong_size(state->struct_size, sizeof *state, "sizeof(canary_session_state)").wrap(kName));
    SessionView v;
    const bool is = session.context().impl->with_engine(
        [&](Engine& e) { return e.read_session(session->member, session->number, &v); });
    if (!is) return report(bad("the session has been closed").wrap(kName));
    state->iteration = v.iteration;
    state->newest = v.newest;
    state->oldest_row = v.oldest_row;
    state->proportion = v.proportion;
    state->overtime = v.overtime ? 1 : 0;
    state->rounds = v.rounds;
    state->dropped = v.dropped;
    state->bytes = v.bytes;
    if (size == kStateWithoutWorkers) return CANARY_OK;
    state->workers = v.living;
    state->reserved = 0;
    if (size == kStateWithoutQuorum) return CANARY_OK;
    state->went_on = v.went_on;
    state->was_late = v.was_late;
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_session_row(canary_session* handle, int64_t iteration, int colayer, uint64_t* bits,
                                            size_t words) {
  constexpr const char* kName = "session_row";
  return guarded([&]() -> canary_status {
    const Inside<canary_session> session(handle);
    if (!session) return HandlePool<canary_session>::refuse(kName, handle);
    if (bits == nullptr) return report(bad("bits are NULL").wrap(kName));
    const std::size_t needed = (static_cast<std::size_t>(session->workers) + 63) / 64;
    if (words < needed) {
      return report(bad("room for " + std::to_string(words) + " words: " + std::to_string(session->workers) +
                        " workers take " + std::to_string(needed))
                        .wrap(kName));
    }
    const bool is = session.context().impl->with_engine([&](Engine& e) {
      const sync::WorkerSet* const row = e.session_row(session->member, session->number, iteration, colayer);
      for (std::size_t i = 0; row != nullptr && i < words; ++i) bits[i] = row->bits(i);
      return row != nullptr;
    });
    if (is) return CANARY_OK;
    return report(
        bad("there is no row of iteration " + std::to_string(iteration) + " and colayer " + std::to_string(colayer))
            .wrap(kName));
  });
}

CANARY_API canary_status canary_session_rows(canary_session* handle, int64_t first, int64_t last, uint64_t* bits,
                                             size_t words) {
  constexpr const char* kName = "session_rows";
  return guarded([&]() -> canary_status {
    const Inside<canary_session> session(handle);
    if (!session) return HandlePool<canary_session>::refuse(kName, handle);
    const auto refuse = [&](const Status& why) { return report(why.wrap(kName)); };
    if (bits == nullptr) return refuse(bad("bits are NULL"));
    const std::string which = "iterations " + std::to_string(first) + " to " + std::to_string(last);
    if (first < 1 || last < first || last - first >= (1 << 24)) return refuse(bad(which));
    const std::size_t row = (static_cast<std::size_t>(session->workers) + 63) / 64;
    const std::size_t needed = static_cast<std::size_t>(last - first + 1) * session->colayers * row;
    if (words < needed) {
      return refuse(bad("room for " + std::to_string(words) + " words: " + which + " take " + std::to_string(needed)));
    }
    const bool are = session.context().impl->with_engine([&](Engine& e) {
      std::uint64_t* to = bits;
      for (std::int64_t t = first; t <= last; ++t) {
        for (int z = 0; z < session->colayers; ++z) {
          const sync::WorkerSet* const members = e.session_row(session->member, session->number, t, z);
          if (members == nullptr) return false;
          for (std::size_t i = 0; i < row; ++i) *to++ = members->bits(i);
        }
      }
      return true;
    });
    return are ? CANARY_OK : refuse(bad("there are not all rows of " + which + " (any more)"));
  });
}

CANARY_API canary_status canary_session_close(canary_session* handle) {
  constexpr const char* kName = "session_close";
  return guarded([&]() -> canary_status {
    const Inside<canary_session> session(handle);
    if (!session || !HandlePool<canary_session>::close(*session, handle))
      return HandlePool<canary_session>::refuse(kName, handle);
    canary_context& context = session.context();
    const canary_status code = ask(context, session->member, [&](auto ticket) {
      return port::close_session(session->member, session->number, ticket);
    });
    // Whoever waited in a step has been told; the others are about to leave.
    wait_until_alone(session->inside);
    const std::lock_guard lock(context.mutex);
    std::erase_if(context.sessions, [&](const auto& s) { return s.get() == &*session; });
    return code;
  });
}

}  // extern "C"
