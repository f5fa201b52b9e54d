#include "engine/session.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "kernels/reduce.h"

namespace canarynet {

using port::SessionWord;
using sync::Iteration;
using sync::SessionRounds;
using sync::Thresholds;

namespace {

void add(std::span<float> to, std::span<const float> from) {
  reduce_kernel(CANARY_F32, CANARY_SUM)(to.data(), to.data(), from.data(), to.size());
}

Status invalid(std::string text) { return Status(CANARY_INVALID_ARGUMENT, std::move(text)); }

// -1: it is no iteration.
Iteration iteration_of(float word) {
  const bool sound = word >= 0 && word <= static_cast<float>(Session::kIterationMax) && std::floor(word) == word;
  return sound ? static_cast<Iteration>(word) : -1;
}

}  // namespace

Thresholds Session::thresholds_of(std::span<const std::uint64_t> numbers, int colayers) {
  Thresholds t;
  t.staleness = numbers[SessionWord::kStaleness] == port::kUnboundedStaleness
                    ? Thresholds::kUnbounded
                    : static_cast<Iteration>(numbers[SessionWord::kStaleness]);
  t.proportion = static_cast<int>(numbers[SessionWord::kProportion]);
  t.at_bound = numbers[SessionWord::kWaits] != 0 ? sync::AtBound::kWait : sync::AtBound::kDrop;
  if (t.at_bound == sync::AtBound::kWait) t.proportion = colayers;
  return t;
}

std::optional<Nanos> Session::linger_of(std::span<const std::uint64_t> numbers) {
  const std::uint64_t linger = numbers[SessionWord::kLinger];
  if (linger == port::kUsualLinger) return {};
  return Nanos{static_cast<std::int64_t>(linger)};
}

Status Session::read(std::span<const std::uint64_t> numbers, int worker, int workers, SessionRounds::Options* out) {
  out->worker = worker;
  out->workers = workers;
  out->colayers = static_cast<int>(numbers.size() - port::kSessionHead);
  out->thresholds = thresholds_of(numbers, out->colayers);
  out->staleness_max = static_cast<Iteration>(numbers[SessionWord::kStalenessMax]);
  out->linger = linger_of(numbers);
  out->backlog_max = static_cast<int>(numbers[SessionWord::kBacklog]);
  return SessionRounds::check(*out);
}

Session::Session(port::MemberId who, std::uint64_t session_number, const SessionRounds::Options& options,
                 std::span<const std::uint64_t> counts)
    : caller(who),
      number(session_number),
      rounds(options),
      colayers(counts.size()),
      backlog_max_(options.backlog_max),
      set_(options.workers) {
  for (std::size_t z = 0; z < counts.size(); ++z) colayers[z].count = static_cast<std::size_t>(counts[z]);
}

// Apart from the constructor: where memory runs out, the other workers are told.
void Session::allocate() {
  for (Colayer& c : colayers) {
    const std::size_t size = c.count + words();
    c.acc.resize(size);
    c.in.resize(size);
    c.backlog.resize(static_cast<std::size_t>(backlog_max_));
    for (auto& result : c.backlog) result.resize(size);
    bytes_ += size * sizeof(float) * (2 + c.backlog.size());
  }
}

void Session::clear() {
  for (Colayer& c : colayers) std::fill(c.acc.begin(), c.acc.end(), 0.0f);
}

Status Session::push(Nanos now, int z, std::span<const float> gradient) {
  if (z >= static_cast<int>(colayers.size()))
    return invalid("colayer " + std::to_string(z) + " of " + std::to_string(colayers.size()));
  Colayer& c = colayers[static_cast<std::size_t>(z)];
  if (gradient.size() != c.count) {
    return invalid("colayer " + std::to_string(z) + " has " + std::to_string(c.count) + " elements, not " +
                   std::to_string(gradient.size()));
  }
  if (rounds.iteration() >= kIterationMax) return Status(CANARY_LIMIT, "a session has at most 2^24 iterations");
  const std::span<float> acc(c.acc.data(), c.count);
  switch (rounds.push(now, z)) {
    case SessionRounds::Push::kRepeated:
      return invalid("colayer " + std::to_string(z) + " was pushed in iteration " + std::to_string(rounds.iteration()) +
                     " already");
    case SessionRounds::Push::kDropped:
      clear();
      break;
    case SessionRounds::Push::kReplaced:
      std::copy(gradient.begin(), gradient.end(), acc.begin());
      break;
    case SessionRounds::Push::kAdded:
      add(acc, gradient);
      break;
  }
  return {};
}

int Session::due(Nanos now) const {
  const int z = rounds.due(now);
  if (z >= 0 || state != State::kFinishing) return z;
  // Nothing of it waits for another's round any more.
  for (int i = 0; i < static_cast<int>(colayers.size()); ++i) {
    if (!rounds.joined(i) && !rounds.waiting(i).empty()) return i;
  }
  return -1;
}

bool Session::drained() const {
  for (int z = 0; z < static_cast<int>(colayers.size()); ++z) {
    if (rounds.joined(z) || !rounds.waiting(z).empty()) return false;
  }
  return true;
}

std::span<float> Session::join(Nanos now, int z) {
  Colayer& c = colayers[static_cast<std::size_t>(z)];
  const SessionRounds::Input input = rounds.join(now, z);
  if (!input.tags.empty()) stalest_ = std::max(stalest_, rounds.newest() - input.tags.first);
  if (input.discard_acc) std::fill(c.acc.begin(), c.acc.end(), 0.0f);
  std::swap(c.acc, c.in);
  std::fill(c.acc.begin(), c.acc.end(), 0.0f);
  float* const mine = c.in.data() + c.count + kWords * static_cast<std::size_t>(rounds.worker());
  mine[0] = input.tags.empty() ? 0.0f : static_cast<float>(input.tags.first);
  mine[1] = input.tags.empty() ? 0.0f : static_cast<float>(input.tags.last);
  mine[2] = static_cast<float>(rounds.iteration());
  c.running = true;
  return c.in;
}

Status Session::commit(Nanos now, int z) {
  Colayer& c = colayers[static_cast<std::size_t>(z)];
  c.running = false;
  set_.clear();
  for (int j = 0; j < set_.set().workers(); ++j) {
    const float* const word = c.in.data() + c.count + kWords * static_cast<std::size_t>(j);
    const Iteration first = iteration_of(word[0]), last = iteration_of(word[1]), now_in = iteration_of(word[2]);
    const bool sound = now_in > 0 && ((first == 0 && last == 0) || (first > 0 && first <= last && last <= now_in));
    if (!sound) {
      return Status(CANARY_INTERNAL, "round " + std::to_string(rounds.next_round(z)) + " of colayer " +
                                         std::to_string(z) + " has impossible contributors");
    }
    rounds.observe(now_in);
    if (last > 0) set_.add(j, {first, last});
  }
  // No longer part of the values.
  std::fill(c.in.begin() + static_cast<std::ptrdiff_t>(c.count), c.in.end(), 0.0f);
  ++committed_;
  committed_at = now;
  switch (rounds.commit(now, z, set_)) {
    case SessionRounds::Commit::kRefused:
      return Status(CANARY_INTERNAL, "round " + std::to_string(rounds.next_round(z)) + " of colayer " +
                                         std::to_string(z) + " has lost the gradient of worker " +
                                         std::to_string(rounds.worker()) + ", or invented one");
    case SessionRounds::Commit::kSkipped:
      break;
    case SessionRounds::Commit::kMerged:
      add(c.backlog[0], c.backlog[1]);
      std::rotate(c.backlog.begin() + 1, c.backlog.begin() + 2, c.backlog.end());
      --c.kept;
      [[fallthrough]];
    case SessionRounds::Commit::kAppended:
      std::swap(c.in, c.backlog[c.kept++]);
      break;
  }
  std::fill(c.in.begin(), c.in.end(), 0.0f);
  return {};
}

// All that is committed and was not handed out, colayer behind colayer.
void Session::take(port::SessionResult* result) {
  std::size_t at = 0;
  for (std::size_t z = 0; z < colayers.size(); ++z) {
    Colayer& c = colayers[z];
    const std::span<float> sum = asked.sums.subspan(at, c.count);
    at += c.count;
    if (c.kept == 0) std::fill(sum.begin(), sum.end(), 0.0f);
    for (std::size_t i = 0; i < c.kept; ++i) {
      if (i == 0) {
        std::copy_n(c.backlog[0].begin(), c.count, sum.begin());
      } else {
        add(sum, std::span<const float>(c.backlog[i]).first(c.count));
      }
    }
    c.kept = 0;
    for (const SessionRounds::Backlog& entry : rounds.backlog(static_cast<int>(z))) {
      result->rounds += entry.last_round - entry.first_round + 1;
      result->gradients += static_cast<std::uint64_t>(entry.gradients);
      if (entry.oldest != 0 && (result->oldest == 0 || entry.oldest < result->oldest)) result->oldest = entry.oldest;
    }
    rounds.clear_backlog(static_cast<int>(z));
  }
}

bool Session::answer(Nanos now, Status* status) {
  port::SessionResult result;
  switch (asked.what) {
    case port::SessionStep::kStep:
      switch (rounds.step(now)) {
        case SessionRounds::Step::kEntered:
          take(&result);
          break;
        case SessionRounds::Step::kBlocked:
          return false;
        case SessionRounds::Step::kOvertime:
          clear();
          result.overtime = 1;
          break;
        case SessionRounds::Step::kUnpushed:
          *status =
              invalid("iteration " + std::to_string(rounds.iteration()) + " ends before every colayer was pushed");
          return true;
      }
      break;
    case port::SessionStep::kPull: {
      // The committed rounds are one log, the same everywhere: who has applied all of them has what the fastest has.
      take(&result);
      std::uint32_t next[port::kColayersMax];
      for (std::size_t z = 0; z < colayers.size(); ++z) next[z] = rounds.next_round(static_cast<int>(z));
      if (rounds.newest() > rounds.iteration()) {
        clear();
        const bool adopted = rounds.adopt(now, rounds.newest(), std::span(next, colayers.size()));
        CANARY_CHECK(adopted, "the log's own end is behind the bound");
      }
      break;
    }
    case port::SessionStep::kFinish:
      if (state != State::kFinished) return false;
      take(&result);
      break;
  }
  result.iteration = rounds.iteration();
  result.newest = rounds.newest();
  result.dropped = rounds.dropped();
  std::memcpy(asked.result, &result, sizeof result);
  *status = {};
  return true;
}

SessionView Session::view() const {
  SessionView v;
  v.iteration = rounds.iteration();
  v.newest = rounds.newest();
  v.oldest_row = rounds.index().oldest_row();
  v.proportion = rounds.index().proportion(rounds.worker(), rounds.iteration());
  v.workers = rounds.members().workers();
  v.colayers = static_cast<int>(colayers.size());
  v.dropped = rounds.dropped();
  v.rounds = committed_;
  v.bytes = bytes_;
  v.stalest = stalest_;
  v.linger = rounds.linger();
  v.overtime = rounds.overtime();
  return v;
}

}  // namespace canarynet
