#include "tools/sim/train/sessions.h"

#include <algorithm>

#include "engine/session.h"

namespace canarynet::sim {
namespace {

constexpr std::uint64_t kNumber = 1;  // in the world, which has no other
// Results of a colayer that are kept apart, as a program has it that does not ask for another number.
constexpr int kBacklog = 2;

std::vector<std::uint64_t> words_of(const Sessions::Options& o, const std::vector<Slice>& slices) {
  sync::SessionRounds::Options rounds;
  rounds.thresholds = o.thresholds;
  rounds.linger = o.linger;
  rounds.backlog_max = kBacklog;
  std::vector<std::uint64_t> words = Session::words_of(rounds, /*goes_on=*/false);
  for (const Slice& slice : slices) {
    words.push_back(slice.size);
    words.push_back(o.codec);
  }
  return words;
}

}  // namespace

Sessions::Sessions(const Options& options, Engines* engines, const std::vector<Slice>* slices,
                   std::function<std::vector<float>&(int)> parameters_of)
    : options_(options),
      engines_(engines),
      slices_(slices),
      parameters_of_(std::move(parameters_of)),
      words_(words_of(options, *slices)),
      workers_(static_cast<std::size_t>(options.workers)) {
  std::size_t elements = 0;
  for (const Slice& slice : *slices) elements += slice.size;
  for (Worker& worker : workers_) worker.sums.resize(elements);
}

void Sessions::open(int worker, Engines::Done opened) {
  engines_->call(
      worker, [&](auto member, auto ticket) { return port::open_session(member, kNumber, words_, ticket); },
      std::move(opened));
}

bool Sessions::push(int worker, int z, std::span<const float> gradient) {
  engines_->call(worker, [&](auto member, auto ticket) { return port::push(member, kNumber, z, gradient, ticket); },
                 {});
  return !engines_->session(worker, kNumber).overtime;
}

void Sessions::pull(int worker, Engines::Done pulled) {
  ++pulls_;
  take(worker, port::SessionStep::kPull, std::move(pulled));
}

void Sessions::take(int worker, port::SessionStep what, Engines::Done taken) {
  Worker& me = at(worker);
  engines_->call(
      worker, [&](auto member, auto ticket) { return port::step(member, kNumber, what, me.sums, &me.result, ticket); },
      [this, worker, taken = std::move(taken)] {
        if (at(worker).result.overtime != 0) return pull(worker, taken);
        apply(worker);
        taken();
      });
}

void Sessions::apply(int worker) {
  const Worker& me = at(worker);
  std::vector<float>& parameters = parameters_of_(worker);
  auto sum = me.sums.begin();
  for (const Slice& slice : *slices_) {
    for (float& value : slice.of(std::span(parameters))) value -= options_.scale * *sum++;
  }
  if (worker != 0) return;
  rounds_ += me.result.rounds;
  gradients_ += me.result.gradients;
}

std::uint64_t Sessions::dropped() const {
  std::uint64_t sum = 0;
  for (const Worker& worker : workers_) sum += worker.result.dropped;
  return sum;
}

}  // namespace canarynet::sim
