#include "tools/sim/train/trainer.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "compress/codec.h"
#include "engine/policy_words.h"
#include "sim/lossy_stream.h"
#include "tools/sim/print.h"

namespace canarynet::sim {
namespace {

constexpr double kAskSeconds = 50e-6;  // one way between a worker and the coordinator
// Nobody computes for this long: a policy or an exchange stands still.
constexpr Nanos kStandstill = 10'000_s;
constexpr std::uint64_t kPolicy = 1;  // in the world, which has no other

// Bytes sent per byte of a gradient or a delta of so many values, whose parts all hosts reduce together. What is fitted
// and encoded by itself is a host's share of a part, on BCube for each level by itself.
double coded_share(const TrainOptions& o, double parameters) {
  if (!o.codec || makes_chain(o.codec->kind)) return 1;  // a chain's parts are all as long as the values
  Coding coding;
  coding.spec = *o.codec;
  const int shares = o.hosts() * (o.topology.kind == TrainTopology::Kind::kBCube ? o.topology.levels : 1);
  const int parts = o.exchanges_deltas() ? o.policy.updates().parts : o.colayers;
  coding.segment.count = static_cast<std::size_t>(std::max(1.0, parameters / parts / shares));
  const std::size_t bytes = head_bytes_max(coding) + body_bytes_max(coding, {0, coding.segment.count});
  return static_cast<double>(bytes) / static_cast<double>(sizeof(float) * coding.segment.count);
}

// What a codec has to send with each part weighs more in a small model than at the profile's size.
double scale_of(const TrainOptions& o, std::size_t parameters) {
  const auto values = static_cast<double>(parameters);
  const double shares = coded_share(o, o.profile.bytes() / sizeof(float)) / coded_share(o, values);
  return shares * o.profile.bytes() / (sizeof(float) * values);
}

// What a rate becomes where all payloads are so many times smaller.
BytesPerSec scaled(BytesPerSec rate, double scale) {
  return {std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(rate.count) / scale))};
}

Wiring wiring_of(const TrainOptions& o) {
  switch (o.topology.kind) {
    case TrainTopology::Kind::kMesh:
      return Wiring::mesh(o.hosts() + o.servers());
    case TrainTopology::Kind::kBCube:
      return Wiring::bcube(o.topology.radix, o.topology.levels);
    case TrainTopology::Kind::kFlat:
      break;
  }
  return Wiring::flat(o.hosts() + o.servers(), o.topology.rails);
}

ClusterOptions cluster_of(const TrainOptions& o, std::size_t parameters) {
  ClusterOptions c;
  c.hosts = o.hosts() + o.servers();
  c.ranks_per_host = o.workers_per_host;
  c.wiring = wiring_of(o);
  c.fabric.seed = o.learner.seed;
  c.fabric.control_latency = Nanos::from_seconds(kAskSeconds);
  const BytesPerSec nic{static_cast<std::int64_t>(o.nic_bits_per_second / 8)};
  c.fabric.nic = NicOptions::link(Nanos::from_seconds(o.latency), scaled(nic, scale_of(o, parameters)));
  // A payload has as many pieces as one of 8 MB would; of the profile's it would have thousands.
  constexpr std::int64_t kPieces = 64, kUnit = 128, kPieceMin = 1024;
  const auto bytes = static_cast<std::int64_t>(4 * parameters);
  c.settings.piece_bytes.count = std::clamp(bytes / kPieces / kUnit * kUnit, kPieceMin, c.settings.piece_bytes.count);
  // On links this slow a heartbeat costs what it would not at the profile's size, and workers may differ a lot.
  c.settings.heartbeat_interval = 10_s;
  c.settings.silence_warning = {};
  c.settings.silence_limit = 1'000_s;
  c.settings.entry_limit = 100'000_s;
  c.settings.exchange_limit = 1'000_s;
  if (o.policy.kind == sync::PolicySpec::Kind::kPs) c.settings.algo = "all_reduce=parameter_server";
  return c;
}

}  // namespace

Trainer::Trainer(const TrainOptions& options, Learner& learner)
    : options_(options),
      learner_(learner),
      slices_(slices_of(learner.size(), options.colayers)),
      scale_(scale_of(options, learner.size())),
      codec_(options.codec ? codec_number(*options.codec).value() : 0),
      policy_name_(sync::to_string(options.policy)),
      engines_(cluster_of(options, learner.size())) {
  for (const LossyNic& lossy : options.lossy) {
    const BytesPerSec rate = scaled(lossy_stream_rate(lossy.loss, Nanos::from_seconds(2 * options.latency)), scale_);
    const int first = std::max(lossy.host, 0);
    const int last = lossy.host < 0 ? options.hosts() + options.servers() - 1 : lossy.host;
    for (int host = first; host <= last; ++host) engines_.limit_streams(host, lossy.nic, rate);
  }
  const sync::Cluster cluster = sync::cluster_of(options.hosts(), options.workers_per_host);
  for (int rank = 0; rank < (options.hosts() + options.servers()) * options.workers_per_host; ++rank)
    hosts_.push_back(static_cast<std::uint64_t>(rank / options.workers_per_host));
  server_ = learner.start();
  if (options.policy.is_session()) {
    Sessions::Options session;
    session.workers = count();
    session.thresholds = options.policy.thresholds(options.colayers);
    session.linger = options.policy.linger;
    session.codec = codec_;
    session.scale = rate() / static_cast<float>(count());
    sessions_ = std::make_unique<Sessions>(session, &engines_, &slices_,
                                           [this](int w) -> std::vector<float>& { return at(w).parameters; });
  }
  workers_.resize(static_cast<std::size_t>(count()));
  for (int w = 0; w < count(); ++w) {
    Worker& me = at(w);
    me.parameters = learner.start();
    me.gradient.resize(learner.size());
    me.waiting.resize(learner.size());
    me.random.emplace(options.learner.seed * 1'000'003 + static_cast<std::uint64_t>(w));
    me.told = me.told_behind = sync::WorkerSet(count());
    me.heard.resize(port::policy_answer_bytes(hosts_.size()));
    me.policy = make_worker(options.policy, cluster, w, time_of(w, nullptr));
    if (options.exchanges_deltas())
      me.updates = std::make_unique<sync::LocalUpdates>(learner.start(), options.policy.updates());
  }
}

Trainer::~Trainer() = default;

std::string Trainer::assumption(const TrainOptions& o, std::size_t parameters) {
  const double scale = scale_of(o, parameters);
  return printed("the gradient of %zu parameters (%.0f bytes) stands for the %.4g MB of ", parameters,
                 4.0 * static_cast<double>(parameters), o.profile.bytes() / 1e6) +
         o.profile.name +
         printed(": NICs are %.4g times slower, so that exchanges take as long against the %.4g s of an iteration as ",
                 scale, o.profile.seconds()) +
         "the profile's; start-up times of messages are not scaled; bytes are given at the profile's size" +
         (o.codec && !makes_chain(o.codec->kind) ? printed("; a byte of it is sent as %.3g at that size",
                                                           coded_share(o, o.profile.bytes() / sizeof(float)))
                                                 : "");
}

Result<Training> Trainer::run() {
  if (Status up = bring_up(); !up.ok()) return up;
  start_ = last_iteration_ = engines_.now();
  start_bytes_ = engines_.sent_bytes();
  evaluate();
  for (int w = 0; w < count(); ++w) proceed(w);
  const double steps_max = options_.steps * count();
  while (static_cast<double>(iterations_) < steps_max && (options_.go_on || !result_.target)) {
    if (!failure_.ok()) return failure_;
    if (!engines_.step()) {
      if (!engines_.failure().ok()) return engines_.failure();
      return Status(CANARY_INTERNAL, "nothing happens any more: policy " + sync::to_string(options_.policy) +
                                         " or one of its exchanges stands still");
    }
    if (engines_.now() - last_iteration_ > kStandstill + at(0).took * 1000) {
      return Status(CANARY_INTERNAL, "no worker has ended an iteration for hours: policy " +
                                         sync::to_string(options_.policy) + " stands still");
    }
  }
  result_.end = point();
  result_.end.accuracy = learner_.accuracy(common_parameters(), options_.final_images);
  const double span = (engines_.now() - start_).seconds();
  result_.hash = engines_.hash();
  result_.divergence = divergence();
  if (sessions_) {
    result_.rounds = static_cast<std::int64_t>(sessions_->rounds());
    result_.gradients =
        result_.rounds > 0 ? static_cast<double>(sessions_->gradients()) / static_cast<double>(result_.rounds) : 0;
    result_.dropped = sessions_->dropped();
    result_.pulls = sessions_->pulls();
  }
  for (int w = 0; w < count(); ++w) {
    result_.iterations.push_back(at(w).iterations);
    result_.computing.push_back(span > 0 ? at(w).computing.seconds() / span : 0);
    for (const float value : at(w).parameters)
      result_.hash = (result_.hash ^ std::bit_cast<std::uint32_t>(value)) * 0x100000001b3ull;
  }
  return result_;
}

// The job, and in it the session and the policy.
Status Trainer::bring_up() {
  if (Status joined = engines_.join(); !joined.ok()) return joined;
  int open = 0;
  const int wanted = (sessions_ ? count() : 0) + (options_.policy.asks() ? count() : 0);
  for (int w = 0; w < count(); ++w) {
    if (sessions_) sessions_->open(w, [&open] { ++open; });
    if (options_.policy.asks()) open_policy(w, [&open] { ++open; });
  }
  while (open < wanted) {
    if (!engines_.step())
      return engines_.failure().ok() ? Status(CANARY_INTERNAL, "its session does not open") : engines_.failure();
  }
  return {};
}

// The loop at the head of sync/policy.h.
void Trainer::proceed(int w) {
  Worker& me = at(w);
  for (;;) {
    const sync::Task task = me.policy->next(engines_.now());
    switch (task.kind) {
      case sync::Task::Kind::kAsk:
        ask(w, task.question);
        continue;
      case sync::Task::Kind::kTrain:
        if (!me.training) begin_iteration(w);
        return;
      case sync::Task::Kind::kExchange:
        if (!me.exchanging) exchange(w, task.exchange);
        if (task.exchange.beside) continue;
        return;
      case sync::Task::Kind::kWait:
        return;
    }
  }
}

Nanos Trainer::time_of(int w, Nanos* asleep) {
  double factor = 1, added = 0;
  for (const Slowness& slow : options_.slow) {
    if (slow.worker != w) continue;
    double share = slow.share;  // of this iteration, or of one on average
    if (asleep != nullptr && share < 1)
      share = static_cast<double>(at(w).random->below(1'000'000)) < share * 1e6 ? 1 : 0;
    factor *= 1 + share * (slow.factor - 1);
    added += share * slow.added;
  }
  const double base = options_.profile.seconds();
  if (asleep == nullptr) return Nanos::from_seconds(base * (factor + added));
  if (options_.jitter > 0) {
    const double drawn = static_cast<double>(at(w).random->below(1'000'001)) / 500'000 - 1;
    factor *= 1 + options_.jitter * drawn;
  }
  *asleep = Nanos::from_seconds(base * added);
  return Nanos::from_seconds(base * factor);
}

void Trainer::begin_iteration(int w) {
  Worker& me = at(w);
  me.training = true;
  me.began = engines_.now();
  const std::uint64_t life = ++me.life;
  Nanos asleep;
  const Nanos working = time_of(w, &asleep);
  me.took = asleep + working;
  learner_.gradient(w, me.parameters, me.gradient);
  if (options_.reduces_gradients()) {
    me.parts = static_cast<int>(slices_.size());
    const double stretch = working.seconds() / options_.profile.seconds();
    for (std::size_t z = 0; z < slices_.size(); ++z) {
      const double share = static_cast<double>(z + 1) / static_cast<double>(slices_.size());
      const Nanos ready = std::min(working, Nanos::from_seconds(options_.profile.ready(share) * stretch));
      engines_.after(asleep + ready, [this, w, z, life] {
        if (at(w).life == life) gradient_part(w, static_cast<int>(z));
      });
    }
  }
  engines_.after(me.took, [this, w, life] {
    if (at(w).life == life) end_iteration(w);
  });
}

void Trainer::end_iteration(int w) {
  Worker& me = at(w);
  me.training = false;
  me.computing += me.took;
  ++me.iterations;
  ++iterations_;
  last_iteration_ = engines_.now();
  using Kind = sync::PolicySpec::Kind;
  const Kind kind = options_.policy.kind;
  const bool local = kind == Kind::kEsync || kind == Kind::kEsyncNonBlocking || kind == Kind::kRipples ||
                     kind == Kind::kRipplesStatic || kind == Kind::kAdPsgd || kind == Kind::kDPsgd ||
                     kind == Kind::kDiloco;
  if (local) {
    for (std::size_t i = 0; i < me.parameters.size(); ++i) me.parameters[i] -= rate() * me.gradient[i];
    me.stepped = true;
  }
  me.policy->trained(engines_.now(), me.took);
  if (iterations_ >= next_evaluation_) evaluate();
  proceed(w);
}

void Trainer::give_up_iteration(int w) {
  Worker& me = at(w);
  me.training = false;
  me.computing += engines_.now() - me.began;
  ++me.life;
}

void Trainer::open_policy(int w, Engines::Done opened) {
  engines_.call(
      w, [&](auto member, auto ticket) { return port::open_policy(member, kPolicy, policy_name_, hosts_, ticket); },
      [this, w, opened = std::move(opened)] {
        opened();
        listen(w);
      });
}

void Trainer::ask(int w, const sync::Question& question) {
  const auto words = write_question(question);
  engines_.call(w, [&](auto member, auto ticket) { return port::ask_policy(member, kPolicy, words, ticket); }, {});
}

void Trainer::listen(int w) {
  engines_.call(
      w,
      [&](auto member, auto ticket) { return port::next_answer(member, kPolicy, at(w).heard, /*waits=*/true, ticket); },
      [this, w] { hear(w); });
}

void Trainer::hear(int w) {
  Worker& me = at(w);
  sync::WorkerSet members(count()), behind(count());
  sync::Answer answer;
  const auto heard = read_answer(me.heard, w, &members, &behind, &answer);
  const bool two = heard.ok() && answer.members != nullptr && me.is_told;
  if (!heard.ok() || heard.value() != Heard::kAnswer || two) {
    failure_ = Status(CANARY_INTERNAL, "worker " + std::to_string(w) + " was told " +
                                           (two ? "of two exchanges at a time" : "what is no answer"));
    return;
  }
  listen(w);
  if (answer.members != nullptr) {
    me.told = members;
    me.told_behind = behind;
    me.is_told = true;
    answer.members = &me.told;
    if (answer.behind != nullptr) answer.behind = &me.told_behind;
  }
  const auto reaction = me.policy->answered(engines_.now(), answer);
  if (reaction == sync::WorkerPolicy::Reaction::kInterrupt && me.training) give_up_iteration(w);
  if (!me.training || reaction == sync::WorkerPolicy::Reaction::kBeside) proceed(w);
}

CurvePoint Trainer::point() {
  return {(engines_.now() - start_).seconds(), static_cast<double>(iterations_) / count(),
          static_cast<double>(engines_.sent_bytes() - start_bytes_) * scale_, 0};
}

std::vector<float> Trainer::mean_parameters() const {
  std::vector<float> mean(learner_.size());
  const float share = 1 / static_cast<float>(workers_.size());
  for (const Worker& worker : workers_) {
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += share * worker.parameters[i];
  }
  return mean;
}

// The model that the job has at this moment: the server's, where there is one; what the last exchange made, where
// workers train by themselves in between, since nobody has the mean of what they have reached meanwhile; else the mean
// of all workers' parameters.
std::vector<float> Trainer::common_parameters() const {
  if (options_.policy.kind == sync::PolicySpec::Kind::kPsAsync) return server_;
  if (options_.exchanges_deltas()) {
    const auto less = [](const Worker& a, const Worker& b) { return a.rounds < b.rounds; };
    const auto anchor = std::max_element(workers_.begin(), workers_.end(), less)->updates->anchor();
    return {anchor.begin(), anchor.end()};
  }
  return mean_parameters();
}

double Trainer::divergence() const {
  const std::vector<float> mean = mean_parameters();
  double length = 0, furthest = 0;
  for (const float value : mean) length += static_cast<double>(value) * value;
  for (const Worker& worker : workers_) {
    double distance = 0;
    for (std::size_t i = 0; i < mean.size(); ++i) {
      const double difference = worker.parameters[i] - mean[i];
      distance += difference * difference;
    }
    furthest = std::max(furthest, distance);
  }
  return length > 0 ? std::sqrt(furthest / length) : 0;
}

void Trainer::evaluate() {
  next_evaluation_ = iterations_ + std::int64_t{options_.evaluate_every} * count();
  CurvePoint now = point();
  now.accuracy = learner_.accuracy(common_parameters(), options_.test_images);
  result_.curve.push_back(now);
  if (!result_.target && now.accuracy >= options_.target) result_.target = now;
}

}  // namespace canarynet::sim
