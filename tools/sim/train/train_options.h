// tools/sim/train/train_options.h -- what a simulated training is asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "compress/spec.h"
#include "sync/policy_name.h"
#include "tools/sim/train/learner.h"
#include "tools/sim/train/profile.h"

namespace canarynet::sim {

// Of one worker: an iteration takes `factor` times the profile's seconds, and `added` of them more in which it sleeps;
// or, with a share below 1, this share of its iterations does, drawn at random.
struct Slowness {
  int worker = 0;
  double factor = 1;
  double added = 0;
  double share = 1;
};

// A NIC that loses this share of all packets, out and in.
struct LossyNic {
  int host = -1;  // -1: that NIC of every host
  int nic = 0;
  double loss = 0;
};

struct TrainTopology {
  enum class Kind : std::uint8_t { kFlat, kMesh, kBCube };
  Kind kind = Kind::kFlat;
  int rails = 1;              // flat: NICs of a host
  int radix = 0, levels = 0;  // bcube
  std::string name() const;
  int nics(int hosts) const;  // of each of so many hosts
};

struct TrainOptions {
  LearnerOptions learner;  // with seed and number of workers
  int workers_per_host = 1;
  sync::PolicySpec policy;
  TrainTopology topology;
  double nic_bits_per_second = 1e10;
  double latency = 20e-6;  // seconds, of a link in one direction
  Profile profile;
  std::vector<Slowness> slow;
  std::vector<LossyNic> lossy;
  std::optional<CodecSpec> codec;  // of gradients
  double jitter = 0;               // an iteration takes up to this share of its time more or less
  double rate = 0.1;               // of learning
  double target = 0.85;
  int colayers = 10;                    // parts in which a gradient is exchanged while the rest of it is computed
  double steps = 2000;                  // at most, as a mean over the workers
  bool go_on = false;                   // beyond the target
  int evaluate_every = 10;              // steps
  std::size_t test_images = 2000;       // of the curve
  std::size_t final_images = SIZE_MAX;  // of the accuracy at the end: all, unless a test is in a hurry

  // Gradients of all workers go through all-reduces, colayer by colayer.
  bool reduces_gradients() const {
    return policy.is_session() || policy.kind == sync::PolicySpec::Kind::kBml ||
           policy.kind == sync::PolicySpec::Kind::kPs;
  }
  // Workers train by themselves, and exchange what that changed.
  bool exchanges_deltas() const {
    using Kind = sync::PolicySpec::Kind;
    return policy.kind == Kind::kEsync || policy.kind == Kind::kEsyncNonBlocking || policy.kind == Kind::kDiloco;
  }
  int workers() const { return learner.workers; }
  int hosts() const { return learner.workers / workers_per_host; }  // of workers
  // More hosts, of which each has a server and nothing else.
  int servers() const { return policy.kind == sync::PolicySpec::Kind::kPsAsync ? 1 : 0; }
};

// "flat", "flat:2" (NICs), "mesh", "bcube:3,2"; an error says what there is.
Result<TrainTopology> parse_topology(std::string_view text);
// "3:5x" (five times as slow), "3:+5x" (five iterations of sleep added), "3:5x@10%" (in a tenth of its iterations),
// several with commas.
Result<std::vector<Slowness>> parse_slow(std::string_view text, int workers);
// "1:10%" (NIC 1 of every host), "3.1:10%" (of host 3), several with commas. Whether the NICs exist is check()'s.
Result<std::vector<LossyNic>> parse_lossy(std::string_view text);
// What the workers, the policy and the topology ask of each other; a policy whose exchange can't run is named.
Status check(const TrainOptions& options);

}  // namespace canarynet::sim
