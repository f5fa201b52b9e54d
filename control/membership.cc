#include "control/membership.h"

#include <algorithm>

#include "base/check.h"
#include "control/coordinator.h"
#include "control/succession.h"

namespace canarynet {

std::unique_ptr<Membership> make_membership(MembershipOptions options, LaneFactory& factory,
                                            MembershipListener& listener) {
  CANARY_CHECK(!options.local_ranks.empty() && std::is_sorted(options.local_ranks.begin(), options.local_ranks.end()),
               "an engine serves ranks, ascending");
  CANARY_CHECK(options.local_ranks.front() >= 0 && options.local_ranks.back() < options.world_size,
               "ranks lie within the world");
  CANARY_CHECK(options.heartbeat_interval.count > 0, "heartbeats need an interval");
  if (options.local_ranks.front() == 0)
    return std::make_unique<control::Coordinator>(std::move(options), factory, listener);
  return std::make_unique<control::Succession>(std::move(options), factory, listener);
}

}  // namespace canarynet
