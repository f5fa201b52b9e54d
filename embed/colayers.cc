#include "embed/colayers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>

#include "collectives/merge_planner.h"
#include "embed/last_error.h"
#include "kernels/crc32c.h"
#include "port/session.h"

namespace canarynet {
namespace {

// The messages that are measured, in elements: the longer one as long as the model, within these bounds.
constexpr std::size_t kShort = 1024, kLongMin = std::size_t{1} << 16, kLongMax = std::size_t{4} << 20;
// No network sends a byte faster. Were it free, waiting for the last tensor would be, too.
constexpr double kByteSecondsMin = 1e-12;
constexpr int kTimes = 4;  // of each; the first one finds a plan that nobody has used yet, and does not count

Status compare(const GroupPlace& place, std::span<const std::size_t> counts) {
  const std::array<std::int64_t, 2> own{static_cast<std::int64_t>(counts.size()),
                                        crc32c(0, counts.data(), counts.size_bytes())};
  std::vector<std::int64_t> all(own.size() * static_cast<std::size_t>(place.shape.size));
  Status gathered = place.run({Collective::kAllGather, own.data(), all.data(), own.size(), CANARY_I64});
  if (!gathered.ok()) return gathered;
  for (std::size_t rank = 1; rank * own.size() < all.size(); ++rank) {
    const std::int64_t* const theirs = &all[rank * own.size()];
    if (theirs[0] == all[0] && theirs[1] == all[1]) continue;
    const bool number = theirs[0] != all[0];
    return Status(CANARY_MISMATCH,
                  "ranks 0 and " + std::to_string(rank) + " declare different models: " +
                      (number ? std::to_string(all[0]) + " and " + std::to_string(theirs[0]) + " tensors"
                              : "tensors of other sizes"));
  }
  return {};
}

// The shortest of some all-reduces of so many elements.
Status measure(const GroupPlace& place, std::span<float> values, std::int64_t* nanoseconds) {
  *nanoseconds = INT64_MAX;
  for (int i = 0; i < kTimes; ++i) {
    const Nanos began = place.context->impl->now();
    Status done =
        place.run({Collective::kAllReduce, values.data(), values.data(), values.size(), CANARY_F32, CANARY_SUM});
    if (!done.ok()) return done;
    if (i > 0) *nanoseconds = std::min(*nanoseconds, (place.context->impl->now() - began).count);
  }
  return {};
}

// No more groups than a session has colayers: two neighbours that are the smallest together become one.
void limit(std::vector<MergeGroup>* groups) {
  while (groups->size() > port::kColayersMax) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < groups->size(); ++i) {
      if ((*groups)[i].bytes + (*groups)[i + 1].bytes < (*groups)[best].bytes + (*groups)[best + 1].bytes) best = i;
    }
    (*groups)[best].first = (*groups)[best + 1].first;  // of a backward pass: the later group has the lower layers
    (*groups)[best].bytes += (*groups)[best + 1].bytes;
    groups->erase(groups->begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

}  // namespace

Result<std::vector<std::size_t>> find_colayers(const GroupPlace& place, std::span<const std::size_t> counts,
                                               std::span<const double> ready) {
  if (Status same = compare(place, counts); !same.ok()) return same;
  std::size_t elements = 0;
  for (const std::size_t count : counts) elements += count;
  // By MIN: what messages took where they were waited for least, and the slowest member's ready times, which therefore
  // are negative.
  std::vector<std::int64_t> seen(2 + counts.size());
  const std::size_t longest = std::clamp(elements, kLongMin, kLongMax);
  {
    std::vector<float> values(longest);
    if (Status s = measure(place, std::span(values).first(kShort), &seen[0]); !s.ok()) return s;
    if (Status s = measure(place, values, &seen[1]); !s.ok()) return s;
  }
  for (std::size_t i = 0; i < counts.size(); ++i) seen[2 + i] = -Nanos::from_seconds(ready[i]).count;
  if (Status s = place.run({Collective::kAllReduce, seen.data(), seen.data(), seen.size(), CANARY_I64, CANARY_MIN});
      !s.ok())
    return s;

  std::vector<std::int64_t> plan(1 + port::kColayersMax);
  if (place.shape.rank == 0) {
    const double bytes = sizeof(float) * static_cast<double>(longest - kShort);
    AffineTime time;
    time.b = std::max(kByteSecondsMin, static_cast<double>(seen[1] - seen[0]) * 1e-9 / bytes);
    const double brief = static_cast<double>(seen[0]) * 1e-9;
    time.a =
        std::max(brief / 2, brief - time.b * sizeof(float) * kShort);  // which a short message is for the most part
    BackwardPass pass;                                                 // in forward order
    pass.layers.resize(counts.size());
    std::int64_t before = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const std::int64_t at = std::max(before, -seen[2 + i]);
      pass.layers[counts.size() - 1 - i] = {static_cast<double>(at - before) * 1e-9, sizeof(float) * counts[i]};
      before = at;
    }
    std::vector<MergeGroup> groups = merge_exactly(pass, time).groups;
    limit(&groups);
    plan[0] = static_cast<std::int64_t>(groups.size());
    for (std::size_t g = 0; g < groups.size(); ++g)
      plan[1 + g] = static_cast<std::int64_t>(counts.size() - groups[g].first);
  }
  if (Status s = place.run(
          {Collective::kBroadcast, plan.data(), plan.data(), plan.size(), CANARY_I64, CANARY_SUM, /*root=*/0});
      !s.ok())
    return s;
  std::vector<std::size_t> ends;
  for (std::int64_t g = 0; g < plan[0]; ++g)
    ends.push_back(static_cast<std::size_t>(plan[static_cast<std::size_t>(1 + g)]));
  return ends;
}

}  // namespace canarynet
