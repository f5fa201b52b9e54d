#include "tools/sim/train/trainer.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "sim/lossy_stream.h"
#include "tools/sim/print.h"

namespace canarynet::sim {
namespace {

constexpr double kAskSeconds = 50e-6;  // one way between a worker and the coordinator
// Nobody computes for this long: a policy or an exchange stands still.
constexpr Nanos kStandstill = 10'000_s;

double scale_of(const TrainOptions& options, std::size_t parameters) {
  const double share = options.codec ? Compressor::share(*options.codec) : 1;
  return share * options.profile.bytes() / (4.0 * static_cast<double>(parameters));
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
      random_(options.learner.seed + 1),
      engines_(cluster_of(options, learner.size())) {
  for (const LossyNic& lossy : options.lossy) {
    const BytesPerSec rate = scaled(lossy_stream_rate(lossy.loss, Nanos::from_seconds(2 * options.latency)), scale_);
    const int first = std::max(lossy.host, 0);
    const int last = lossy.host < 0 ? options.hosts() + options.servers() - 1 : lossy.host;
    for (int host = first; host <= last; ++host) engines_.limit_streams(host, lossy.nic, rate);
  }
  const sync::Cluster cluster = sync::cluster_of(options.hosts(), options.workers_per_host);
  coordinator_ = make_coordinator(options.policy, cluster, &random_);
  server_ = learner.start();
  if (options.codec) {
    const int parts = options.exchanges_deltas() ? options.policy.updates().parts : options.colayers;
    compressor_ = std::make_unique<Compressor>(*options.codec, slices_of(learner.size(), parts), count());
  }
  if (options.policy.is_session() && options.policy.kind != sync::PolicySpec::Kind::kBsp) {
    Sessions::Options session;
    session.workers = count();
    session.thresholds = options.policy.thresholds(options.colayers);
    session.linger = options.policy.linger;
    session.notice = Nanos::from_seconds(options.latency);
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
         (o.codec ? printed("; a byte of it is sent as %.3g, and sums on their way are not encoded again",
                            Compressor::share(*o.codec))
                  : "");
}

Result<Training> Trainer::run() {
  if (Status joined = engines_.join(); !joined.ok()) return joined;
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
    result_.rounds = sessions_->rounds();
    result_.contributors =
        result_.rounds > 0 ? static_cast<double>(sessions_->contributions()) / static_cast<double>(result_.rounds) : 0;
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

// The loop at the head of sync/policy.h.
void Trainer::proceed(int w) {
  Worker& me = at(w);
  for (;;) {
    const sync::Task task = me.policy->next(engines_.now());
    switch (task.kind) {
      case sync::Task::Kind::kAsk:
        ask(task.question);
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
    factor *= slow.factor;
    added += slow.added;
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

void Trainer::ask(const sync::Question& question) {
  engines_.after(Nanos::from_seconds(kAskSeconds), [this, question] {
    sync::Answers answers;
    coordinator_->asked(engines_.now(), question, &answers);
    deliver(answers);
  });
}

void Trainer::deliver(const sync::Answers& answers) {
  for (const sync::Answer& answer : answers) {
    engines_.after(Nanos::from_seconds(kAskSeconds), [this, answer] {
      Worker& me = at(answer.worker);
      const auto reaction = me.policy->answered(engines_.now(), answer);
      if (reaction == sync::WorkerPolicy::Reaction::kInterrupt && me.training) give_up_iteration(answer.worker);
      if (!me.training || reaction == sync::WorkerPolicy::Reaction::kBeside) proceed(answer.worker);
    });
  }
  watch_deadline();
}

void Trainer::watch_deadline() {
  const Nanos deadline = coordinator_->next_deadline();
  if (deadline == Nanos::max() || deadline == watched_) return;
  watched_ = deadline;
  engines_.after(std::max(deadline - engines_.now(), Nanos{}), [this] {
    watched_ = Nanos::max();
    if (coordinator_->next_deadline() > engines_.now()) return watch_deadline();
    sync::Answers answers;
    coordinator_->expire(engines_.now(), &answers);
    deliver(answers);
  });
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
