#include "examples/train_fashion_mnist/sync_trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <utility>

#include "examples/train_fashion_mnist/traffic.h"

namespace train {

SyncTrainer::SyncTrainer(canarynet::Context& context, const Options& options, const Dataset& images)
    : context_(context),
      options_(options),
      replica_(options, images, context.rank()),
      pace_(options.pace_ms, options.slowness_of(context.rank()), replica_.network().buckets().size()),
      velocity_(replica_.network().parameters().size()),
      change_(velocity_.size()),
      sums_(velocity_.size()) {
  for (int rank = 0; rank < context.world_size(); ++rank) alive_.push_back(rank);
  for (const Range& bucket : replica_.network().buckets()) counts_.push_back(bucket.size());
}

SyncFigures SyncTrainer::train() {
  for (;;) {
    try {
      agree();
      if (!trained_) {
        if (canarynet::Policy::by_session(options_.sync)) {
          train_in_session();
        } else {
          train_by_averaging();
        }
        trained_ = true;
        agree();
      }
      return figures();
    } catch (const canarynet::Error& error) {
      lose(error);
    }
  }
}

// All go on from the same parameters and count from the same progress.
void SyncTrainer::agree() {
  const auto parameters = replica_.network().parameters();
  if (!agreed_) {
    group().broadcast(parameters, 0);
  } else {
    const std::vector<float> own(parameters.begin(), parameters.end());
    group().all_reduce(own, parameters, CANARY_AVG);
    double length = 0, distance = 0;
    for (std::size_t i = 0; i < own.size(); ++i) {
      length += static_cast<double>(parameters[i]) * parameters[i];
      distance += std::pow(static_cast<double>(own[i] - parameters[i]), 2);
    }
    if (trained_) apart_ = std::max(apart_, length > 0 ? std::sqrt(distance / length) : 0);
    group().all_reduce(std::span(&apart_, 1), CANARY_MAX);
  }
  // Who is through with training has heard all others say so.
  std::int64_t progress[3] = {done_, merged_, trained_ ? 1 : 0};
  group().all_reduce(std::span(progress), CANARY_MAX);
  done_ = progress[0];
  merged_ = progress[1];
  trained_ = progress[2] != 0;
  workers_ = group().size();
  if (!agreed_) start_ms_ = now_ms();
  agreed_ = true;
}

void SyncTrainer::train_in_session() {
  const canarynet::Rule rule = canarynet::Rule::parse(options_.sync);
  const bool waits = rule.at_bound == CANARY_AT_BOUND_WAIT;
  canarynet::Session session(group(), 1, counts_, rule, 0, 2, {}, CANARY_AT_DEATH_GO_ON);
  const std::int64_t dropped_before = mine_.dropped, done_before = done_;
  const auto note = [&](const canary_session_result& result, double since) {
    waited_since(since);
    mine_.dropped = dropped_before + static_cast<std::int64_t>(result.dropped);
    workers_ = session.state().workers;
    merged_ += static_cast<std::int64_t>(result.gradients);
    if (result.overtime == 0) apply();
  };
  // Numbers of iterations, since a rank that others go on without leaves some out.
  const auto count = [&](const canary_session_result& result) {
    done_ = waits ? done_before + result.iteration - 1 : done_ + 1;
  };
  while (!over(waits)) {
    compute(session, waits);
    double since = now_ms();
    const canary_session_result stepped = step(session, waits);
    note(stepped, since);
    if (stepped.overtime != 0) {  // what the velocity has gathered belongs to parameters that are given up
      since = now_ms();
      note(session.pull(sums_), since);
      std::fill(velocity_.begin(), velocity_.end(), 0.0f);
      ++mine_.pulls;
    }
    ++step_;
    count(stepped);
    ++mine_.iterations;
    if (step_ % options_.report_every == 0) report();
  }
  const double since = now_ms();
  note(session.finish(sums_), since);
  const canary_session_state state = session.state();
  mine_.went_on += static_cast<std::int64_t>(state.went_on);
  mine_.was_late += static_cast<std::int64_t>(state.was_late);
  session.close();
}

void SyncTrainer::train_by_averaging() {
  const double usual_ms = options_.pace_ms * options_.slowness_of(context_.rank());
  canarynet::Policy policy(group(), 1, options_.sync, {}, std::chrono::microseconds(std::llround(1e3 * usual_ms)));
  canarynet::OpOptions how;
  if (!options_.codec.empty()) {
    how.codec = canarynet::codec(options_.codec.c_str());
    how.tensor = 1;
  }
  policy.lend(replica_.network().parameters(), how);
  for (;;) {
    const double since = now_ms();
    const canarynet::Policy::Task task = policy.next();
    if (task.done()) break;
    if (!task.train()) exchange(policy, task);
    waited_since(since);
    if (!task.train()) continue;
    if (over(true)) {
      policy.leave();
      continue;
    }
    const double start = now_ms();
    train_alone(policy);
    policy.trained(std::chrono::microseconds(std::llround(1e3 * (now_ms() - start))));
    ++step_;
    ++done_;
    ++mine_.iterations;
    if (step_ % options_.report_every == 0) report();
  }
  policy.close();
}

// The parameters stay as they are where it fails, as it does with a rank that has died or is out of time.
void SyncTrainer::exchange(canarynet::Policy& policy, const canarynet::Policy::Task& task) {
  constexpr double kGraceMs = 500;  // for those who are about to come
  std::chrono::nanoseconds deadline{};
  if (options_.seconds > 0)
    deadline = std::chrono::microseconds(std::max<std::int64_t>(1, std::llround(1e3 * (left_ms() + kGraceMs))));
  // One that was begun in the middle of an iteration is told once it has come, in up to two steps.
  if (std::exchange(exchange_, task.number) != task.number) ++mine_.exchanges;
  beside_ = task.raw.beside != 0;
  try {
    policy.exchange(deadline);
  } catch (const canarynet::Error& error) {
    const auto code = error.code();
    if (code != CANARY_PEER_DIED && code != CANARY_PEER_SILENT && code != CANARY_MISMATCH && code != CANARY_DEADLINE)
      throw;
    ++mine_.failed;
  }
}

// An iteration with a step of this rank's own. What runs beside it begins as soon as the others are ready.
void SyncTrainer::train_alone(canarynet::Policy& policy) {
  const double start = now_ms(), loss = replica_.forward(step_, group().rank(), group().size());
  pace_.after_forward();
  bool polls = beside_;  // once, since it asks the engine's thread
  replica_.network().backward([&](Range) {
    pace_.before_bucket();
    if (std::exchange(polls, false)) (void)policy.interrupted();
  });
  const float rate = rate_at(options_, step_, progress(true), progress_end());
  const std::span<const float> gradient = replica_.network().gradient();
  const auto parameters = replica_.network().parameters();
  for (std::size_t i = 0; i < velocity_.size(); ++i) {
    velocity_[i] = options_.momentum * velocity_[i] + gradient[i];
    parameters[i] -= rate * velocity_[i];
  }
  pace_.computed(now_ms() - start - pace_.taken());
  loss_ += loss;
  mine_.loss += loss;
}

void SyncTrainer::compute(canarynet::Session& session, bool waits) {
  const double start = now_ms(), loss = replica_.forward(step_, group().rank(), group().size());
  double elsewhere = 0;  // handing over
  pace_.after_forward();
  const float rate = rate_at(options_, step_, progress(waits), progress_end()) / static_cast<float>(workers_);
  const std::span<const float> gradient = replica_.network().gradient();
  int colayer = 0;
  replica_.network().backward([&](Range range) {
    pace_.before_bucket();
    for (std::size_t i = range.begin; i < range.end; ++i) {
      velocity_[i] = options_.momentum * velocity_[i] + gradient[i];
      change_[i] = rate * velocity_[i];
    }
    const double since = now_ms();
    session.push(colayer++, std::span<const float>(change_).subspan(range.begin, range.size()));
    elsewhere += now_ms() - since;
  });
  pace_.computed(now_ms() - start - elsewhere - pace_.taken());
  loss_ += loss;
  mine_.loss += loss;
}

canary_session_result SyncTrainer::step(canarynet::Session& session, bool waits) {
  if (!waits || options_.seconds == 0) return session.step(sums_);
  // Whoever is at the bound when the time is over would wait for gradients that never come.
  canary_session_result result = CANARY_SESSION_RESULT_INIT;
  canarynet::Operation step = session.step_async(sums_, &result);
  step.set_deadline(std::chrono::microseconds(std::max<std::int64_t>(1, std::llround(1e3 * left_ms()))));
  try {
    step.wait();
  } catch (const canarynet::Error& error) {
    if (error.code() != CANARY_DEADLINE) throw;
    session.set(canarynet::Rule::asp());
    return session.step(sums_);
  }
  return result;
}

// The sums hold what the parameters change by, colayer behind colayer.
void SyncTrainer::apply() {
  const auto parameters = replica_.network().parameters();
  std::size_t at = 0;
  for (const Range& range : replica_.network().buckets()) {
    for (std::size_t i = range.begin; i < range.end; ++i) parameters[i] -= sums_[at++];
  }
}

// In seconds, or in iterations: of everybody where steps wait, else of everybody on average.
float SyncTrainer::progress(bool waits) const {
  if (options_.seconds > 0) return static_cast<float>(std::min(options_.seconds, (now_ms() - start_ms_) / 1e3));
  if (waits) return static_cast<float>(done_);
  const auto per_step = static_cast<std::int64_t>(counts_.size()) * context_.world_size();
  return std::min(static_cast<float>(options_.steps), static_cast<float>(merged_ / per_step));
}

float SyncTrainer::progress_end() const {
  return static_cast<float>(options_.seconds > 0 ? options_.seconds : static_cast<double>(options_.steps));
}

void SyncTrainer::report() {
  if (!speaks()) return;
  const std::string exchanged =
      mine_.exchanges > 0
          ? format("%d means", static_cast<int>(mine_.exchanges))
          : format("gradients of %.1f iterations of each rank",
                   static_cast<double>(merged_) / static_cast<double>(counts_.size()) / context_.world_size());
  std::printf("%6.1f s  iteration %5zu  loss %.4f  %s, %.0f %% of the time in exchanges, %d ranks\n",
              (now_ms() - start_ms_) / 1e3, step_, loss_ / static_cast<double>(step_ - reported_), exchanged.c_str(),
              100 * mine_.waited / mine_.seconds, workers_);
  std::fflush(stdout);
  reported_ = step_;
  loss_ = 0;
}

// A group of those who are left; throws the failure again where it names nobody who could be left out.
void SyncTrainer::lose(const canarynet::Error& first) {
  canarynet::Error error = first;
  for (;;) {
    const auto dead = std::find(alive_.begin(), alive_.end(), error.rank());
    const bool death = error.code() == CANARY_PEER_DIED || error.code() == CANARY_PEER_SILENT;
    if (!death || dead == alive_.end() || error.rank() == context_.rank()) throw error;
    died_.push_back(error.rank());
    alive_.erase(dead);
    std::fprintf(stderr, "train_fashion_mnist: rank %d goes on without rank %d: %s\n", context_.rank(), error.rank(),
                 error.what());
    try {
      left_.reset();
      left_ = context_.create_group(alive_);
      return;
    } catch (const canarynet::Error& another) {
      error = another;
    }
  }
}

void SyncTrainer::waited_since(double start_ms) {
  const double now = now_ms(), waited = (now - start_ms) / 1e3;
  mine_.waited += waited;
  mine_.longest_wait = std::max(mine_.longest_wait, waited);
  mine_.seconds = (now - start_ms_) / 1e3;
}

SyncFigures SyncTrainer::figures() {
  SyncFigures figures{
      .workers = std::vector<WorkerFigures>(static_cast<std::size_t>(group().size())), .died = died_, .apart = apart_};
  WorkerFigures mine = mine_;
  mine.rank = context_.rank();
  mine.loss /= static_cast<double>(std::max<std::int64_t>(1, mine.iterations));
  const auto bytes = [](std::span<WorkerFigures> of) {
    return std::span(reinterpret_cast<std::uint8_t*>(of.data()), of.size_bytes());
  };
  group().all_gather(bytes(std::span(&mine, 1)), bytes(figures.workers));
  return figures;
}

}  // namespace train
