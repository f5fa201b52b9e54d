#include "engine/session.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/hashed_bag.h"
#include "compress/codec_ask.h"
#include "kernels/reduce.h"

namespace canarynet {

using port::SessionWord;
using sync::Iteration;
using sync::SessionRounds;
using sync::Thresholds;

namespace {

static_assert(port::kAbsencesMax == Thresholds::kAbsencesMax, "words and names of rules have one limit");

void add(std::span<float> to, std::span<const float> from) {
  reduce_kernel(CANARY_F32, CANARY_SUM)(to.data(), to.data(), from.data(), to.size());
}

Status invalid(std::string text) { return Status(CANARY_INVALID_ARGUMENT, std::move(text)); }

// -1: it is no iteration.
Iteration iteration_of(float word) {
  const bool sound = word >= 0 && word <= static_cast<float>(Session::kIterationMax) && std::floor(word) == word;
  return sound ? static_cast<Iteration>(word) : -1;
}

// A word's microseconds: what is late by a day is as late as can be.
constexpr float kLateMax = 86'400e6F;
float late_word(Nanos late) {
  const std::int64_t us = late.count / 1000;
  return std::min(static_cast<float>(us), kLateMax);
}

// Whether a session's rounds can travel by it.
Status check_codec(std::uint32_t number) {
  if (number == 0) return {};
  if (Status good = check_asked(number); !good.ok()) return good;
  if (asks_for_choice(number))
    return invalid("codec " + text_asked(number) + " is a choice, and a session makes none: name one codec");
  const CodecKind kind = codec_of_number(number).value().kind;
  if (needs_shape(kind))
    return invalid("codec " + text_asked(number) +
                   " is not for sessions: colayers have no shape; take a sketch or topk");
  if (kind != CodecKind::kArTopK) return {};
  return invalid(
      "codec " + text_asked(number) +
      " is not for sessions: its ranks agree on the elements of their gradients that travel, and a round has "
      "ranks without one; take topk");
}

bool encodes_only_finite(std::uint32_t codec) { return codec != 0 && !codec_of_number(codec).value().or_dense; }

// The first element whose sum is NaN or infinite.
std::size_t first_sum_not_finite(std::span<const float> a, std::span<const float> b) {
  constexpr std::size_t kBlock = 4096;
  for (std::size_t i = 0; i < a.size(); i += kBlock) {
    const std::size_t end = std::min(a.size(), i + kBlock);
    int wrong = 0;  // in one go, which compilers turn into vectors
    for (std::size_t j = i; j < end; ++j) wrong |= !(std::abs(a[j] + b[j]) <= std::numeric_limits<float>::max());
    for (std::size_t j = i; wrong != 0 && j < end; ++j) {
      if (!std::isfinite(a[j] + b[j])) return j;
    }
  }
  return a.size();
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
  t.quorum = static_cast<int>(numbers[SessionWord::kQuorum]);
  t.absences = static_cast<int>(numbers[SessionWord::kAbsences]);
  return t;
}

std::optional<Nanos> Session::linger_of(std::span<const std::uint64_t> numbers) {
  const std::uint64_t linger = numbers[SessionWord::kLinger];
  if (linger == port::kUsualLinger) return {};
  return Nanos{static_cast<std::int64_t>(linger)};
}

std::vector<std::uint64_t> Session::words_of(const SessionRounds::Options& o, bool goes_on) {
  const auto word = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  const Thresholds& t = o.thresholds;
  std::vector<std::uint64_t> words(port::kSessionHead);
  words[SessionWord::kStaleness] =
      t.staleness == Thresholds::kUnbounded ? port::kUnboundedStaleness : word(t.staleness);
  words[SessionWord::kProportion] = word(t.proportion);
  words[SessionWord::kWaits] = t.at_bound == sync::AtBound::kWait ? 1 : 0;
  words[SessionWord::kQuorum] = word(t.quorum);
  words[SessionWord::kAbsences] = word(t.absences);
  words[SessionWord::kLinger] = o.linger ? word(o.linger->count) : port::kUsualLinger;
  words[SessionWord::kStalenessMax] = word(o.staleness_max);
  words[SessionWord::kBacklog] = word(o.backlog_max);
  words[SessionWord::kGoesOn] = goes_on ? 1 : 0;
  return words;
}

std::string Session::name_of(std::uint64_t number) { return "session #" + std::to_string(number); }

std::uint64_t Session::group_number(std::size_t place, const sync::WorkerSet& dead) const {
  constexpr std::uint64_t kSessions = 0x53e5510053e55100u;  // apart from partial all-reduces of the same numbers
  std::uint64_t hash = mixed_bits(mixed_bits(number ^ kSessions) + place);
  for (int w = dead.next(); w >= 0; w = dead.next(w + 1)) hash = mixed_bits(hash + static_cast<std::uint64_t>(w));
  return hash;
}

Status Session::read(std::span<const std::uint64_t> numbers, int worker, int workers, SessionRounds::Options* out) {
  out->worker = worker;
  out->workers = workers;
  const auto layout = numbers.subspan(port::kSessionHead);
  out->colayers = static_cast<int>(layout.size() / port::kSessionColayer);
  out->thresholds = thresholds_of(numbers, out->colayers);
  out->staleness_max = static_cast<Iteration>(numbers[SessionWord::kStalenessMax]);
  out->linger = linger_of(numbers);
  out->backlog_max = static_cast<int>(numbers[SessionWord::kBacklog]);
  for (std::size_t z = 0; z < layout.size() / port::kSessionColayer; ++z) {
    const Status good = check_codec(static_cast<std::uint32_t>(layout[port::kSessionColayer * z + 1]));
    if (!good.ok()) return good.wrap("colayer " + std::to_string(z));
  }
  return SessionRounds::check(*out);
}

Session::Session(port::MemberId who, std::uint64_t session_number, const SessionRounds::Options& options,
                 std::span<const std::uint64_t> numbers, std::vector<int> world_ranks)
    : caller(who),
      number(session_number),
      goes_on(numbers[SessionWord::kGoesOn] != 0),
      ranks(std::move(world_ranks)),
      living(ranks.size()),
      agreement(options.worker, options.workers, options.colayers),
      rounds(options),
      colayers((numbers.size() - port::kSessionHead) / port::kSessionColayer),
      backlog_max_(options.backlog_max),
      set_(options.workers),
      reports_(goes_on ? ranks.size() * report_words() : 0) {
  std::iota(living.begin(), living.end(), 0);
  const auto layout = numbers.subspan(port::kSessionHead);
  for (std::size_t z = 0; z < colayers.size(); ++z) {
    colayers[z].count = static_cast<std::size_t>(layout[port::kSessionColayer * z]);
    colayers[z].codec = static_cast<std::uint32_t>(layout[port::kSessionColayer * z + 1]);
    colayers[z].finite = encodes_only_finite(colayers[z].codec);
  }
}

// Apart from the constructor: where memory runs out, the other workers are told.
void Session::allocate() {
  for (Colayer& c : colayers) {
    const std::size_t size = c.count + words();
    c.acc.resize(size);
    c.in.resize(size);
    if (goes_on) c.out.resize(size);
    if (c.codec != 0) c.left_out.resize(c.count);
    if (c.codec != 0 && goes_on) c.left_now.resize(c.count);
    c.backlog.resize(static_cast<std::size_t>(backlog_max_));
    for (auto& result : c.backlog) result.resize(size);
    const std::size_t whole = 2 + c.backlog.size() + (goes_on ? 1 : 0);
    bytes_ += sizeof(float) * (size * whole + c.left_out.size() + c.left_now.size());
  }
}

void Session::free_memory() {
  for (Colayer& c : colayers) {
    for (std::vector<float>* const buffer : {&c.acc, &c.in, &c.out, &c.left_out, &c.left_now})
      std::vector<float>().swap(*buffer);
    std::vector<std::vector<float>>().swap(c.backlog);
    c.kept = 0;
    c.last = Colayer::kNone;
  }
  bytes_ = 0;
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
  // Before anything changes, so that the worker may push another one.
  if (const std::size_t at = c.finite ? first_sum_not_finite(acc, gradient) : c.count; at != c.count) {
    const bool own = !std::isfinite(gradient[at]);
    return invalid("element " + std::to_string(at) + " of colayer " + std::to_string(z) + " is " +
                   std::to_string(own ? gradient[at] : acc[at] + gradient[at]) +
                   (own ? "" : " with what waits for a round") + ", which codec " + text_asked(c.codec) +
                   " does not encode");
  }
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
    if (rounds.joined(z) || !rounds.waiting(z).empty() || !rounds.settled(z)) return false;
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
  // What was left out goes with a gradient, or by itself when no more gradients will come.
  c.took_left = c.codec != 0 && (!input.tags.empty() || state != State::kOpen);
  if (c.took_left) {
    add(std::span(c.in).first(c.count), c.left_out);
    if (c.left_now.empty()) std::fill(c.left_out.begin(), c.left_out.end(), 0.0f);
  }
  std::fill(c.left_now.begin(), c.left_now.end(), 0.0f);
  float* const mine = c.in.data() + c.count + kWords * static_cast<std::size_t>(rounds.worker());
  mine[0] = input.tags.empty() ? 0.0f : static_cast<float>(input.tags.first);
  mine[1] = static_cast<float>(input.tags.empty() ? std::min(input.settled, kIterationMax) : input.tags.last);
  mine[2] = static_cast<float>(rounds.iteration());
  mine[3] = late_word(input.late);
  c.running = true;
  return c.in;
}

Status Session::commit(Nanos now, int z, bool handed) {
  Colayer& c = colayers[static_cast<std::size_t>(z)];
  c.running = false;
  set_.clear();
  for (int j = 0; j < set_.set().workers(); ++j) {
    const float* const word = c.result().data() + c.count + kWords * static_cast<std::size_t>(j);
    const Iteration first = iteration_of(word[0]), last = iteration_of(word[1]), now_in = iteration_of(word[2]);
    // The dead say nothing, and where the others are now is no part of what is handed out.
    const bool says = !handed && rounds.members().has(j);
    const bool sound =
        now_in >= (says ? 1 : 0) && word[3] >= 0 && word[3] <= kLateMax &&
        ((first == 0 && last >= 0) || (first > 0 && first <= last && last <= (says ? now_in : kIterationMax)));
    if (!sound) {
      return Status(CANARY_INTERNAL, "round " + std::to_string(rounds.next_round(z)) + " of colayer " +
                                         std::to_string(z) + " has impossible contributors");
    }
    if (says) rounds.hear(j, now_in);
    if (first > 0) set_.add(j, {first, last});
    if (says && first == 0) rounds.hear_settled(j, z, last == kIterationMax ? SessionRounds::kNoMore : last);
    if (says && first > 0 && z == static_cast<int>(colayers.size()) - 1)
      rounds.hear_late(j, Nanos{static_cast<std::int64_t>(word[3]) * 1000});
  }
  // No longer part of the values.
  std::fill(c.result().begin() + static_cast<std::ptrdiff_t>(c.count), c.result().end(), 0.0f);
  ++committed_;
  committed_at = now;
  switch (rounds.commit(now, z, set_)) {
    case SessionRounds::Commit::kRefused:
      return Status(CANARY_INTERNAL, "round " + std::to_string(rounds.next_round(z)) + " of colayer " +
                                         std::to_string(z) + " has lost the gradient of worker " +
                                         std::to_string(rounds.worker()) + ", or invented one");
    case SessionRounds::Commit::kSkipped:
      CANARY_CHECK(c.kept < c.backlog.size(), "a pull that left results of before it");
      c.last = c.kept;
      std::swap(c.result(), c.backlog[c.last]);
      break;
    case SessionRounds::Commit::kMerged:
      add(c.backlog[0], c.backlog[1]);
      std::rotate(c.backlog.begin() + 1, c.backlog.begin() + 2, c.backlog.end());
      --c.kept;
      [[fallthrough]];
    case SessionRounds::Commit::kAppended:
      c.last = c.kept++;
      std::swap(c.result(), c.backlog[c.last]);
      break;
  }
  if (c.out.empty()) std::fill(c.in.begin(), c.in.end(), 0.0f);
  if (!c.left_now.empty() && c.took_left) {
    std::swap(c.left_out, c.left_now);
  } else if (!c.left_now.empty()) {
    add(c.left_out, c.left_now);
  }
  return {};
}

// --- after deaths ----------------------------------------------------------------------------------------------------

sync::DeathAgreement::Standing Session::standing() const {
  sync::DeathAgreement::Standing s;
  for (int z = 0; z < static_cast<int>(colayers.size()); ++z) s.next_rounds.push_back(rounds.next_round(z));
  s.iteration = rounds.iteration();
  return s;
}

void Session::live() {
  living.clear();
  for (int w = 0; w < static_cast<int>(ranks.size()); ++w) {
    if (!agreement.dead().has(w)) living.push_back(w);
  }
}

std::span<std::int64_t> Session::report() {
  std::fill(reports_.begin(), reports_.end(), 0);
  std::int64_t* mine = reports_.data() + report_words() * static_cast<std::size_t>(rounds.worker());
  for (int z = 0; z < static_cast<int>(colayers.size()); ++z) *mine++ = rounds.next_round(z);
  *mine++ = rounds.iteration();
  *mine = state == State::kFinished ? 1 : 0;
  return reports_;
}

bool Session::hear_reports() {
  const sync::DeathAgreement::Standing own = standing();
  bool finished = state == State::kFinished;
  for (const int w : living) {
    const std::int64_t* said = reports_.data() + report_words() * static_cast<std::size_t>(w);
    sync::DeathAgreement::Report report{agreement.dead(), {}};
    for (std::size_t z = 0; z < colayers.size(); ++z, ++said) {
      if (*said < 1 || *said > std::numeric_limits<std::uint32_t>::max()) return false;
      report.standing.next_rounds.push_back(static_cast<std::uint32_t>(*said));
    }
    report.standing.iteration = *said++;
    if (report.standing.iteration > kIterationMax || *said < 0 || *said > 1) return false;
    if (w == rounds.worker()) {
      // What others added to it they would see, and this worker not.
      const bool same = report.standing.next_rounds == own.next_rounds && report.standing.iteration == own.iteration;
      if (!same || (*said != 0) != (state == State::kFinished)) return false;
      continue;
    }
    finished |= *said != 0;
    if (agreement.heard(w, report, own) != sync::DeathAgreement::Heard::kNoted) return false;
  }
  if (!agreement.decided()) return false;
  if (!finished) return true;
  // Somebody has met all others twice, so all have all rounds and nothing more is to come; here the death came first.
  for (int z = 0; z < static_cast<int>(colayers.size()); ++z) {
    if (agreement.holder(z) >= 0) return false;
  }
  if (state != State::kFinished && (state != State::kFinishing || !drained())) return false;
  state = State::kFinished;
  return true;
}

std::span<float> Session::hand_out(int z) {
  Colayer& c = colayers[static_cast<std::size_t>(z)];
  if (agreement.holder(z) != rounds.worker()) return c.out;
  CANARY_CHECK(c.last != Colayer::kNone, "a worker that hands out a round before its first one");
  std::vector<float>& last = c.backlog[c.last];
  const sync::Contributors& set = rounds.last(z);
  for (int j = 0; j < set.set().workers(); ++j) {
    float* const word = last.data() + c.count + kWords * static_cast<std::size_t>(j);
    word[0] = set.set().has(j) ? static_cast<float>(set.of(j).first) : 0.0f;
    word[1] = set.set().has(j) ? static_cast<float>(set.of(j).last) : 0.0f;
  }
  return last;
}

Status Session::resume(Nanos now) {
  sync::WorkerSet members(rounds.members().workers());
  for (const int w : living) members.add(w);
  rounds.regroup(members, agreement.newest());
  for (int z = 0; z < static_cast<int>(colayers.size()); ++z) {
    Colayer& c = colayers[static_cast<std::size_t>(z)];
    c.running = false;
    if (c.last != Colayer::kNone) {
      auto& last = c.backlog[c.last];
      std::fill(last.begin() + static_cast<std::ptrdiff_t>(c.count), last.end(), 0.0f);
    }
    switch (rounds.recover(now, z, agreement.next_round(z))) {
      case SessionRounds::Recovery::kFetchLast:
        if (Status wrong = commit(now, z, true); !wrong.ok()) return wrong;
        break;
      case SessionRounds::Recovery::kReturnInput:
        add(std::span(c.acc).first(c.count), std::span<const float>(c.in).first(c.count));
        if (c.took_left) std::fill(c.left_out.begin(), c.left_out.end(), 0.0f);  // it is in there
        break;
      case SessionRounds::Recovery::kDropInput:
      case SessionRounds::Recovery::kNothing:
        break;
      case SessionRounds::Recovery::kInconsistent:
        return Status(CANARY_INTERNAL, "the survivors' next round of colayer " + std::to_string(z) + " is " +
                                           std::to_string(agreement.next_round(z)) + ", that of worker " +
                                           std::to_string(rounds.worker()) + " " +
                                           std::to_string(rounds.next_round(z)));
    }
  }
  rounds.regroup(members, agreement.newest());  // a round that was handed out may be of the dead one's last iteration
  spared_ |= rounds.resume(agreement.epoch());
  agreement.finish();
  recovery = Recovery::kNone;
  asked.since = committed_at = now;
  return {};
}

// --- the worker's steps ----------------------------------------------------------------------------------------------

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
          spared_ = false;
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
      // Nobody is ahead any more: it goes on as if it had not been told to pull.
      if (spared_) {
        const SessionRounds::Step entered = rounds.step(now);
        if (entered == SessionRounds::Step::kBlocked) return false;
        spared_ = false;
      }
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
  v.living = static_cast<int>(living.size());
  v.colayers = static_cast<int>(colayers.size());
  v.dropped = rounds.dropped();
  v.rounds = committed_;
  v.bytes = bytes_;
  v.stalest = stalest_;
  v.linger = rounds.linger();
  v.went_on = rounds.went_on();
  v.was_late = rounds.was_late();
  v.overtime = rounds.overtime();
  return v;
}

}  // namespace canarynet
