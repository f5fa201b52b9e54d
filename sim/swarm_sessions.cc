#include "sim/swarm_sessions.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include "base/check.h"
#include "compress/codec_ask.h"
#include "kernels/crc32c.h"

namespace canarynet {
namespace {

constexpr sync::Iteration kStalenessMax = 64;

}  // namespace

std::size_t SwarmSessions::Session::elements() const {
  std::size_t sum = 0;
  for (const Colayer& c : colayers) sum += c.count;
  return sum;
}

// --- drawing ---------------------------------------------------------------------------------------------------------

SwarmSessions::SwarmSessions(const Life& life, std::uint64_t seed, Excuse excuse)
    : life_(life),
      random_(seed ^ 0x73657373696f6eull),
      excuse_(std::move(excuse)),
      gone_(static_cast<std::size_t>(life.cluster.hosts)) {
  const std::uint64_t count = life.ranks() > 16 ? random_.below(2) + 1 : random_.below(4);
  Random quorums(seed ^ 0x71756f72756d73ull);  // apart: other lives stay what they were
  for (std::uint64_t i = 0; i < count; ++i) {
    sessions_.push_back(draw_session(i + 1));
    Session& session = sessions_.back();
    sync::Thresholds& rule = session.rounds.thresholds;
    if (rule.at_bound == sync::AtBound::kWait && quorums.below(2) == 0) {
      rule.quorum = static_cast<int>(30 + quorums.below(70));
      rule.absences = static_cast<int>(1 + quorums.below(18));
      session.strict = false;  // what comes late counts
    }
    // Some speeds differ much.
    const Nanos compute = 200_us + below(3_ms), begin = below(30_ms);
    const bool slow = random_.below(2) == 0;
    for (int r = 0; r < life.ranks(); ++r) {
      Worker& worker = session.workers.emplace_back();
      worker.session = &session;
      worker.rank = r;
      worker.until = begin + below(5_ms);
      worker.compute = compute + below(compute);
      if (slow && random_.below(4) == 0)
        worker.compute = worker.compute * static_cast<std::int64_t>(2 + random_.below(8));
      for (const Colayer& c : session.colayers) worker.handed.emplace_back(c.count);
      worker.left_out.resize(session.colayers.size());
      worker.seen.resize(session.colayers.size());
      worker.log.resize(session.colayers.size());
    }
  }
}

SwarmSessions::Session SwarmSessions::draw_session(std::uint64_t number) {
  const bool many = life_.ranks() > 16;
  Session s;
  s.number = number;
  const std::size_t colayers = 1 + random_.below(many ? 2 : 4);
  s.iterations = static_cast<int>(many ? 3 + random_.below(3) : 4 + random_.below(16));
  s.marks = static_cast<std::size_t>(life_.ranks() * s.iterations);
  sync::Thresholds& thresholds = s.rounds.thresholds;
  thresholds.proportion = static_cast<int>(colayers);
  const auto rule = random_.below(6);
  thresholds.at_bound = rule < 2 ? sync::AtBound::kWait : sync::AtBound::kDrop;
  thresholds.staleness = rule == 0   ? 0
                         : rule == 5 ? sync::Thresholds::kUnbounded
                                     : static_cast<sync::Iteration>(1 + random_.below(5));
  if (rule == 4) thresholds.proportion = static_cast<int>(1 + random_.below(colayers));
  s.rounds.linger = draw_linger();
  s.rounds.staleness_max = kStalenessMax;
  s.rounds.backlog_max = static_cast<int>(2 + random_.below(4));
  s.goes_on = life_.pairs && random_.below(2) != 0;  // survivors have to meet
  s.changes = random_.below(4) == 0;
  s.deadlines = random_.below(4) == 0;
  s.bound = thresholds.staleness;
  s.strict = rule < 2 || thresholds.proportion == static_cast<int>(colayers);
  const std::string& algo = life_.cluster.settings.algo;
  const bool codecs = life_.pairs && (algo.empty() || algo == "mesh") && random_.below(3) == 0;
  const char* const names[] = {"topk:0.05", "topk:0.3", "int8", "sketch:8"};
  const std::size_t beyond[] = {0, 1, 100, 3000, 20'000};
  for (std::size_t z = 0; z < colayers; ++z) {
    Colayer c;
    c.count = s.marks + beyond[random_.below(many ? 4 : std::size(beyond))];
    if (codecs && random_.below(3) != 0) {
      const auto which = random_.below(std::size(names));
      c.codec = number_asked(names[which]).value();
      c.exact = which < 2;
    }
    s.colayers.push_back(c);
  }
  return s;
}

std::string SwarmSessions::shape() const {
  std::string text = std::to_string(sessions_.size()) + " sessions";
  for (const Session& s : sessions_) {
    text += " (";
    const sync::Thresholds& t = s.rounds.thresholds;
    text += t.at_bound == sync::AtBound::kWait ? "waits" : "drops";
    text += t.staleness == sync::Thresholds::kUnbounded ? " never" : " at " + std::to_string(t.staleness);
    if (s.has_quorum()) text += ", quorum " + std::to_string(t.quorum) + " but for " + std::to_string(t.absences);
    text += ", p " + std::to_string(t.proportion) + ", " + std::to_string(s.iterations) + " iterations of";
    for (const Colayer& c : s.colayers)
      text += " " + std::to_string(c.count) + (c.codec != 0 ? " " + text_asked(c.codec) : "");
    text += s.goes_on ? ", goes on" : "";
    text += s.changes ? ", changes" : "";
    text += s.deadlines ? ", deadlines)" : ")";
  }
  return text;
}

std::optional<Nanos> SwarmSessions::draw_linger() {
  if (random_.below(2) == 0) return {};
  return Nanos{static_cast<std::int64_t>(random_.below(3'000'000))};
}

// --- calling ---------------------------------------------------------------------------------------------------------

void SwarmSessions::begin(Cluster* cluster) {
  cluster_ = cluster;
  cluster->add_watcher(this);
  last_event_ = cluster->now();
  for (Session& session : sessions_) {
    for (Worker& worker : session.workers) worker.until = worker.until + cluster->now();
  }
}

bool SwarmSessions::act() {
  if (sessions_.empty()) return false;
  const auto n = sessions_.size() * sessions_.front().workers.size();
  const auto turn = random_.below(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t at = (turn + i) % n;
    if (go(sessions_[at % sessions_.size()].workers[at / sessions_.size()])) return true;
  }
  return false;
}

Nanos SwarmSessions::wakes() const {
  using At = Worker::At;
  Nanos next = Nanos::max();
  for (const Session& session : sessions_) {
    for (const Worker& w : session.workers) {
      const bool goes = w.at == At::kWaiting || w.at == At::kComputing || w.at == At::kEnded;
      if (goes && w.until > cluster_->now()) next = std::min(next, w.until);
    }
  }
  return next;
}

bool SwarmSessions::go(Worker& worker) {
  using At = Worker::At;
  if (worker.at == At::kBuried || worker.at == At::kClosed) return false;
  const int host = cluster_->host_of(worker.rank);
  if (worker.until > cluster_->now() || !cluster_->alive(host) || cluster_->fabric().frozen(host)) return false;
  const Session& session = *worker.session;
  switch (worker.at) {
    case At::kWaiting:
      open(worker);
      break;
    case At::kComputing:
      if (worker.again) {
        ask(worker, worker.asks);
      } else if (session.over(worker)) {
        ask(worker, port::SessionStep::kFinish);
      } else if (worker.pushed < session.colayers.size()) {
        push(worker);
      } else {
        if (session.changes && random_.below(8) == 0) set_thresholds(worker);
        if (worker.at == At::kComputing) ask(worker, port::SessionStep::kStep);
      }
      break;
    case At::kEnded:
      worker.at = At::kClosing;
      worker.ticket = std::make_unique<OpTicket>();
      cluster_->submit(worker.rank,
                       port::close_session(member_of(worker), session.number,
                                           cluster_->id(cluster_->world(worker.rank), worker.ticket.get())));
      break;
    default:
      return false;
  }
  last_event_ = cluster_->now();
  return true;
}

void SwarmSessions::give_back(std::unique_ptr<LentMemory>* memory) {
  (*memory)->take_back();
  if (const std::string where = shelf_.add(std::move(**memory)); !where.empty()) fail(where);
  memory->reset();
}

void SwarmSessions::open(Worker& worker) {
  std::vector<std::uint64_t> said = canarynet::Session::words_of(worker.session->rounds, worker.session->goes_on);
  for (const Colayer& c : worker.session->colayers) {
    said.push_back(c.count);
    said.push_back(c.codec);
  }
  auto memory = std::make_unique<LentMemory>(said.size() * sizeof said[0]);
  auto* const numbers = reinterpret_cast<std::uint64_t*>(memory->data());
  std::copy(said.begin(), said.end(), numbers);
  worker.at = Worker::At::kOpening;
  worker.ticket = std::make_unique<OpTicket>();
  cluster_->submit(worker.rank, port::open_session(member_of(worker), worker.session->number, {numbers, said.size()},
                                                   cluster_->id(cluster_->world(worker.rank), worker.ticket.get())));
  give_back(&memory);
}

void SwarmSessions::push(Worker& worker) {
  const Session& session = *worker.session;
  const std::size_t z = worker.pushed;
  const Colayer& colayer = session.colayers[z];
  auto memory = std::make_unique<LentMemory>(colayer.count * sizeof(float));
  const std::span<float> gradient(reinterpret_cast<float*>(memory->data()), colayer.count);
  std::fill(gradient.begin(), gradient.end(), 0.0f);
  gradient[static_cast<std::size_t>(worker.rank * session.iterations + worker.n)] = 1;
  if (colayer.codec == 0)
    std::fill(gradient.begin() + static_cast<std::ptrdiff_t>(session.marks), gradient.end(), 1.0f);
  // Others may hear of it before the call returns.
  ++worker.pushed;
  ++gradients_;
  OpTicket ticket;
  cluster_->submit(worker.rank, port::push(member_of(worker), session.number, static_cast<int>(z), gradient,
                                           cluster_->id(cluster_->world(worker.rank), &ticket)));
  CANARY_CHECK(ticket.done(), "a push that waits");
  give_back(&memory);
  if (ticket.code != CANARY_OK) {
    --worker.pushed;
    --gradients_;
    return refused(worker, ticket.status);
  }
  worker.until = cluster_->now() + below(worker.compute * 2 / static_cast<std::int64_t>(session.colayers.size()));
}

void SwarmSessions::set_thresholds(Worker& worker) {
  Session& session = *worker.session;
  sync::SessionRounds::Options changed = session.rounds;
  changed.thresholds.staleness = static_cast<sync::Iteration>(random_.below(6));
  changed.linger = draw_linger();
  session.bound = std::max(session.bound, changed.thresholds.staleness);
  const std::vector<std::uint64_t> said = canarynet::Session::words_of(changed, session.goes_on);
  OpTicket ticket;
  cluster_->submit(worker.rank, port::thresholds(member_of(worker), session.number, said,
                                                 cluster_->id(cluster_->world(worker.rank), &ticket)));
  CANARY_CHECK(ticket.done(), "thresholds that wait");
  if (ticket.code != CANARY_OK) refused(worker, ticket.status);
}

void SwarmSessions::ask(Worker& worker, port::SessionStep what) {
  worker.at = Worker::At::kAsked;
  worker.asks = what;
  worker.again = false;
  worker.ticket = std::make_unique<OpTicket>();
  worker.sums = std::make_unique<LentMemory>(worker.session->elements() * sizeof(float));
  worker.result = std::make_unique<LentMemory>(sizeof(port::SessionResult));
  const GroupMember* const member = cluster_->world(worker.rank);
  cluster_->submit(worker.rank, port::step(member->id, worker.session->number, what,
                                           {reinterpret_cast<float*>(worker.sums->data()), worker.session->elements()},
                                           reinterpret_cast<port::SessionResult*>(worker.result->data()),
                                           cluster_->id(member, worker.ticket.get())));
  if (worker.at == Worker::At::kAsked && worker.session->deadlines && random_.below(4) == 0)
    cluster_->set_deadline(member, worker.ticket.get(), below(5_ms) + 1_ns);
}

// --- judging ---------------------------------------------------------------------------------------------------------

std::string SwarmSessions::name(const Worker& worker) const {
  return "rank " + std::to_string(worker.rank) + ", session " + std::to_string(worker.session->number) + ": ";
}

void SwarmSessions::polled(int host) {
  using At = Worker::At;
  for (Session& session : sessions_) {
    for (int r = cluster_->first_rank(host); r < cluster_->first_rank(host + 1); ++r) {
      Worker& worker = session.workers[static_cast<std::size_t>(r)];
      const bool open = worker.at == At::kComputing || worker.at == At::kAsked;
      if (open) note_rounds(worker);
      const bool waits = worker.at == At::kOpening || worker.at == At::kAsked || worker.at == At::kClosing;
      if (waits && worker.ticket->done()) answered(worker);
    }
  }
}

void SwarmSessions::note_rounds(Worker& worker) {
  for (std::size_t z = 0; z < worker.seen.size(); ++z) {
    std::uint32_t round = 0;
    const std::span<const float> last =
        engine_of(worker).session_last(member_of(worker), worker.session->number, static_cast<int>(z), &round);
    if (round == 0 || round == worker.seen[z]) continue;
    if (round < worker.seen[z]) fail(name(worker) + "its log went back to round " + std::to_string(round));
    worker.seen[z] = round;
    worker.log[z].emplace_back(round, crc32c(0, last.data(), last.size_bytes()));
    mix(worker.log[z].back().second);
    ++rounds_;
  }
}

void SwarmSessions::answered(Worker& worker) {
  using At = Worker::At;
  last_event_ = cluster_->now();
  mix(static_cast<std::uint64_t>(worker.ticket->code));
  const Status status = worker.ticket->code == CANARY_OK ? Status() : worker.ticket->status;
  if (worker.at == At::kClosing) {
    if (!status.ok()) fail(name(worker) + "it was not closed: " + status.to_string());
    worker.at = At::kClosed;
    return;
  }
  if (worker.at == At::kOpening) {
    if (!status.ok()) return refused(worker, status);
    worker.at = At::kComputing;
    worker.until = cluster_->now() + below(worker.compute);
    return;
  }
  port::SessionResult result;
  if (status.ok()) std::memcpy(&result, worker.result->data(), sizeof result);
  if (status.ok() && result.overtime == 0) take(worker, result);
  give_back(&worker.sums);
  give_back(&worker.result);
  worker.until = cluster_->now();
  if (status.code() == CANARY_DEADLINE && worker.session->deadlines) {
    worker.at = At::kComputing;
    worker.again = true;
    return;
  }
  if (!status.ok()) return refused(worker, status);
  check_view(worker);
  if (result.overtime != 0) {
    if (worker.asks != port::SessionStep::kStep) fail(name(worker) + "told to pull by a pull, or at the end");
    worker.at = At::kComputing;
    worker.asks = port::SessionStep::kPull;
    worker.again = true;
    return;
  }
  if (result.dropped < worker.last.dropped || result.iteration < worker.last.iteration)
    fail(name(worker) + "iteration " + std::to_string(result.iteration) + " and " + std::to_string(result.dropped) +
         " dropped, after " + std::to_string(worker.last.iteration) + " and " + std::to_string(worker.last.dropped));
  worker.last = result;
  if (worker.asks != port::SessionStep::kFinish) {
    ++worker.n;
    worker.pushed = 0;
    worker.at = At::kComputing;
    worker.until = cluster_->now() + below(worker.compute);
    return;
  }
  for (std::size_t z = 0; z < worker.left_out.size(); ++z) {
    const auto left =
        engine_of(worker).session_left_out(member_of(worker), worker.session->number, static_cast<int>(z));
    worker.left_out[z].assign(left.begin(), left.end());
  }
  dropped_ += result.dropped;
  worker.finished = true;
  end(worker);
}

// The bounds that are promised. Where gradients are dropped, none is joined that is further behind the newest
// iteration. Where workers wait, nobody else goes more than s iterations beyond the first one of mine that has not come
// to all, and I go s and one more beyond theirs at most.
void SwarmSessions::check_view(const Worker& worker) {
  const Session& session = *worker.session;
  SessionView view;
  if (!engine_of(worker).read_session(member_of(worker), session.number, &view))
    return fail(name(worker) + "it is not there");
  if (!session.strict || session.bound == sync::Thresholds::kUnbounded) return;
  const bool waits = session.rounds.thresholds.at_bound == sync::AtBound::kWait;
  if (view.stalest > (waits ? 2 * session.bound + 1 : session.bound))
    fail(name(worker) + "joined a gradient that was " + std::to_string(view.stalest) + " iterations behind");
}

void SwarmSessions::take(Worker& worker, const port::SessionResult& result) {
  const Session& session = *worker.session;
  std::uint64_t gradients = 0;
  std::size_t from = 0;
  bool counted = true;  // a codec may leave a gradient out of the sum that counts it
  for (std::size_t z = 0; z < session.colayers.size(); ++z) {
    const Colayer& c = session.colayers[z];
    gradients += take_colayer(worker, z, {reinterpret_cast<const float*>(worker.sums->data()) + from, c.count});
    from += c.count;
    counted &= c.codec == 0;
  }
  if (counted && gradients != result.gradients)
    fail(name(worker) + std::to_string(gradients) + " gradients were handed out as " +
         std::to_string(result.gradients));
}

// Adds it to what the worker was handed before. Returns the number of gradients in it.
std::uint64_t SwarmSessions::take_colayer(Worker& worker, std::size_t z, std::span<const float> sum) {
  const Session& session = *worker.session;
  const Colayer& c = session.colayers[z];
  std::uint64_t gradients = 0;
  const auto wrong = [&](std::size_t i) {
    std::string what = name(worker) + "element " + std::to_string(i) + " of colayer " + std::to_string(z) + " is " +
                       std::to_string(sum[i]);
    if (i < session.marks)
      what += ", gradient " + std::to_string(i % static_cast<std::size_t>(session.iterations)) + " of rank " +
              std::to_string(i / static_cast<std::size_t>(session.iterations)) + ", of which " +
              std::to_string(worker.handed[z][i]) + " had been handed out";
    fail(what + ", with " + std::to_string(gradients) + " gradients in the sum");
  };
  for (std::size_t i = 0; i < session.marks; ++i) {
    float& handed = worker.handed[z][i];
    if (!c.exact) {
      handed += sum[i];
      continue;
    }
    if (sum[i] == 0) continue;
    const Worker& by = session.workers[i / static_cast<std::size_t>(session.iterations)];
    const auto n = static_cast<int>(i % static_cast<std::size_t>(session.iterations));
    const bool pushed = n < by.n || (n == by.n && z < by.pushed);
    if (sum[i] != 1 || handed != 0 || !pushed) return wrong(i), 0;
    handed = 1;
    ++gradients;
  }
  for (std::size_t i = session.marks; i < c.count && c.exact; ++i) {
    if (sum[i] != (c.codec == 0 ? static_cast<float>(gradients) : 0.0f)) return wrong(i), gradients;
  }
  return gradients;
}

void SwarmSessions::refused(Worker& worker, const Status& status) {
  ++errors_;
  if (const std::string wrong = excuse_(worker.session->goes_on, worker.rank, status); !wrong.empty())
    fail(name(worker) + wrong);
  const bool opened = worker.at != Worker::At::kOpening;
  worker.failed = true;
  end(worker);
  if (!opened) worker.at = Worker::At::kClosed;
}

void SwarmSessions::end(Worker& worker) {
  worker.at = Worker::At::kEnded;
  worker.until = cluster_->now() + below(3_ms);
  judge(*worker.session);
}

void SwarmSessions::bury(int host) {
  for (Session& session : sessions_) {
    for (Worker& worker : session.workers) {
      if (cluster_->host_of(worker.rank) == host) worker.at = Worker::At::kBuried;
    }
    judge(session);
  }
}

// Once all workers have finished, failed or died. A host that was cut off, or stood still, may have gone on by itself:
// its workers count as dead.
void SwarmSessions::judge(Session& session) {
  std::vector<Worker*> finished;
  for (Worker& worker : session.workers) {
    const bool dead = worker.at == Worker::At::kBuried;
    if (!worker.finished && !worker.failed && !dead) return;
    const bool counts = !gone_[static_cast<std::size_t>(cluster_->host_of(worker.rank))];
    if (worker.finished && !dead && counts) finished.push_back(&worker);
  }
  if (finished.empty() || std::exchange(session.judged, true)) return;
  survived_ += finished.size() < session.workers.size() ? 1 : 0;
  for (std::size_t z = 0; z < session.colayers.size(); ++z) {
    for (const Worker* worker : finished) compare_logs(*finished[0], *worker, z);
  }
  std::vector<std::uint64_t> missing(session.workers.size());
  for (std::size_t z = 0; z < session.colayers.size(); ++z) count_missing(session, z, finished, &missing);
  const bool whole = finished.size() == session.workers.size();
  const bool codecs =
      std::any_of(session.colayers.begin(), session.colayers.end(), [](const Colayer& c) { return c.codec != 0; });
  if (codecs && !whole) return;  // what codecs had left out at the dead is lost
  for (const Worker* worker : finished) {
    const std::uint64_t lost = missing[static_cast<std::size_t>(worker->rank)];
    if (lost != worker->last.dropped)
      fail(name(*worker) + std::to_string(lost) + " of its gradients were handed out to nobody, and it was told of " +
           std::to_string(worker->last.dropped) + " that were dropped");
  }
}

// The results of all rounds that both have seen have the same bits.
void SwarmSessions::compare_logs(const Worker& a, const Worker& b, std::size_t z) {
  auto other = b.log[z].begin();
  for (const auto& [round, crc] : a.log[z]) {
    while (other != b.log[z].end() && other->first < round) ++other;
    if (other == b.log[z].end()) return;
    if (other->first == round && other->second != crc)
      return fail(name(a) + "round " + std::to_string(round) + " of colayer " + std::to_string(z) +
                  " has other bits than at rank " + std::to_string(b.rank));
  }
}

// Adds, by rank, the gradients of the colayer that were pushed and that nobody was handed.
void SwarmSessions::count_missing(const Session& session, std::size_t z, const std::vector<Worker*>& finished,
                                  std::vector<std::uint64_t>* missing) {
  const Colayer& c = session.colayers[z];
  const bool whole = finished.size() == session.workers.size();
  const double tolerance = c.exact ? 0 : 0.01;
  for (std::size_t i = 0; i < session.marks; ++i) {
    const auto rank = i / static_cast<std::size_t>(session.iterations);
    const auto n = static_cast<int>(i % static_cast<std::size_t>(session.iterations));
    const Worker& by = session.workers[rank];
    double left = 0;
    for (const Worker* worker : finished) {
      if (!worker->left_out[z].empty()) left += static_cast<double>(worker->left_out[z][i]);
      const double apart =
          std::abs(static_cast<double>(worker->handed[z][i]) - static_cast<double>(finished[0]->handed[z][i]));
      if (!(apart <= tolerance))
        return fail(name(*worker) + "gradient " + std::to_string(n) + " of rank " + std::to_string(rank) +
                    ", colayer " + std::to_string(z) + ": " + std::to_string(worker->handed[z][i]) + ", and rank " +
                    std::to_string(finished[0]->rank) + " was handed " + std::to_string(finished[0]->handed[z][i]));
    }
    const double came = static_cast<double>(finished[0]->handed[z][i]) + left;
    if (whole && !(std::abs(came) <= tolerance || std::abs(came - 1) <= tolerance))
      return fail(name(by) + "of its gradient " + std::to_string(n) + " of colayer " + std::to_string(z) + " " +
                  std::to_string(came) + " was handed out or left out");
    if (n < by.n && came < 0.5) ++(*missing)[rank];
  }
}

bool SwarmSessions::finished() const {
  using At = Worker::At;
  return std::all_of(sessions_.begin(), sessions_.end(), [](const Session& session) {
    return std::all_of(session.workers.begin(), session.workers.end(),
                       [](const Worker& w) { return w.at == At::kClosed || w.at == At::kBuried; });
  });
}

void SwarmSessions::close() {
  if (const std::string where = shelf_.trespass(); !where.empty()) fail(where);
}

std::string SwarmSessions::pending() const {
  const char* const names[] = {"waiting", "opening", "computing", "asked", "ended", "closing"};
  std::string text;
  for (const Session& session : sessions_) {
    for (const Worker& w : session.workers) {
      if (w.at >= Worker::At::kClosed) continue;
      text += "; " + name(w) + names[static_cast<int>(w.at)] + " " + std::to_string(static_cast<int>(w.asks)) +
              " after " + std::to_string(w.n) + " iterations";
      if (text.size() > 1000) return text + " ...";
    }
  }
  return text;
}

}  // namespace canarynet
