// sync/policy_name.h -- a policy as users name it, and the objects behind the name.
//
//   NAME[:OPTION,...]     an option is key=value; of ssp and ripples the first one may stand without its key
//
//   bsp                   every gradient of everybody, every iteration
//   ssp:3                 bounded lead: nobody is more than s=3 iterations ahead
//   asp                   nobody waits, nothing is dropped
//                         both: quorum=75 percent of the workers are enough once the others are unusually late (100);
//                         absences=18 steps in a row go on without the same one at most
//   canary:s=18,p=6       beyond s iterations behind and with less than p colayers merged: drop and pull;
//                         linger=5ms (default: a quarter of the median iteration) in all four
//   ps, ps-async          parameter servers, in step or not
//   bml                   an all-reduce per iteration
//   ako:parts=4           partial gradient exchange
//   esync, esync-nb       local training until the slowest is about to finish; without blocking; rate=1 (outer)
//   ripples:smart         or random, static, static-rotating; group=3, threshold=4, section=1, inter-intra=1
//   ad-psgd, d-psgd       pairs; neighbours on a ring; section=1 (ad-psgd)
//   diloco:h=50           local steps; rate=0.7, momentum=0.9 (outer), fragments=1, quorum=100 (percent), overlap=0
//                         (iterations beside an exchange), mix=0.5 (see local_updates.h; default: none)
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "base/status.h"
#include "sync/gei.h"
#include "sync/local_steps.h"
#include "sync/local_updates.h"
#include "sync/meetings.h"
#include "sync/policy.h"
#include "sync/ripples.h"

namespace canarynet::sync {

struct PolicySpec {
  enum class Kind {
    kBsp,
    kSsp,
    kAsp,
    kCanary,
    kPs,
    kPsAsync,
    kBml,
    kAko,
    kEsync,
    kEsyncNonBlocking,
    kRipples,
    kRipplesStatic,
    kAdPsgd,
    kDPsgd,
    kDiloco
  };
  Kind kind = Kind::kBsp;
  Iteration staleness = 18;
  int proportion = 6;
  int quorum = Thresholds().quorum;      // bsp, ssp: percent
  int absences = Thresholds().absences;  // likewise
  std::optional<Nanos> linger;
  int parts = 4;
  double outer_rate = 1.0;  // esync
  GroupGenerator::Mode groups = GroupGenerator::Mode::kSmart;
  int group_size = 3;
  int slowdown_threshold = 4;
  int section = 1;
  bool inter_intra = true;
  bool rotating = false;
  LocalSteps local_steps;

  // Whether the gradients go through a session's rounds, and with which thresholds.
  bool is_session() const { return kind <= Kind::kCanary; }
  Thresholds thresholds(int colayers) const;
  // Whether its workers ask a coordinator.
  bool asks() const {
    return kind == Kind::kEsync || kind == Kind::kEsyncNonBlocking || kind == Kind::kRipples || kind == Kind::kAdPsgd ||
           kind == Kind::kDiloco;
  }
  // What follows from the mean of an exchange of deltas.
  LocalUpdates::Options updates() const;
};

// InvalidArgument names what is wrong and what there is instead.
Result<PolicySpec> parse_policy(std::string_view text);
// In the shortest form that parse_policy() reads as the same.
std::string to_string(const PolicySpec& spec);

// Hosts with the workers 0 to n - 1 in order.
struct Cluster {
  std::vector<int> host_of;
  Meetings meetings = {};
  int workers() const { return static_cast<int>(host_of.size()); }
};
Cluster cluster_of(int hosts, int workers_per_host);

// Not every policy fits every cluster: static schedules need hosts of one size, AD-PSGD an active and a passive worker.
Status check(const PolicySpec& spec, const Cluster& cluster);
// Of a spec that check() accepts. `first_capability` is the time of a first, uncounted iteration, which ESync asks for.
std::unique_ptr<WorkerPolicy> make_worker(const PolicySpec& spec, const Cluster& cluster, int worker,
                                          Nanos first_capability = {});
// nullptr where the policy has none. `random` must outlive it.
std::unique_ptr<Coordinator> make_coordinator(const PolicySpec& spec, const Cluster& cluster, Random* random);

}  // namespace canarynet::sync
