#include "tools/sim/merge.h"

#include <nlohmann/json.hpp>

#include "tools/sim/print.h"

namespace canarynet::sim {
namespace {

using Json = nlohmann::ordered_json;

const MergePlan& plan_of(const MergeRow& row, MergePolicy policy) {
  return row.plans[static_cast<std::size_t>(policy)];
}

}  // namespace

double MergeStudy::backward_seconds() const {
  double sum = 0;
  for (const LayerTiming& layer : pass.layers) sum += layer.backward_seconds;
  return sum;
}
std::uint64_t MergeStudy::bytes() const {
  std::uint64_t sum = 0;
  for (const LayerTiming& layer : pass.layers) sum += layer.bytes;
  return sum;
}

std::vector<MergeRow> rows_of(const MergeStudy& study) {
  std::vector<MergeRow> rows;
  for (const int workers : study.workers) {
    MergeRow row;
    row.workers = workers;
    row.time = scaled(study.law, study.fitted, study.fitted_workers, workers);
    for (int p = 0; p < kMergePolicyCount; ++p) {
      const auto policy = static_cast<MergePolicy>(p);
      row.plans[static_cast<std::size_t>(p)] = plan_merges(policy, study.pass, row.time);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

double speed_up(const MergeStudy& study, const MergeRow& row, MergePolicy policy) {
  const double alone = study.pass.forward_seconds + study.backward_seconds();
  const double iteration = plan_of(row, policy).iteration_seconds;
  return iteration > 0 ? row.workers * alone / iteration : row.workers;
}

std::string text_of(const MergeStudy& study, const std::vector<MergeRow>& rows) {
  std::string out = study.source + ": " + std::to_string(study.pass.layers.size()) + " tensors" +
                    printed(", %.6g MB; forward %.4g s, backward %.4g s\n", static_cast<double>(study.bytes()) / 1e6,
                            study.pass.forward_seconds, study.backward_seconds());
  if (!study.assumption.empty()) out += "assumes: " + study.assumption + "\n";
  out += "all-reduce " + std::string(name_of(study.law)) +
         printed(": a = %.4g s, b = %.4g s/byte", study.fitted.a, study.fitted.b);
  out += study.law == ScalingLaw::kFixed ? " for any number of workers\n"
                                         : printed(" on a ring of %d\n", study.fitted_workers);
  out +=
      "\n                     seconds per iteration                messages       exact is faster than     speed-up\n"
      "workers     a (ms)       wfbp  synceasgd     mgwfbp      exact  mgwfbp  exact    wfbp synceasgd mgwfbp  of "
      "exact\n";
  for (const MergeRow& row : rows) {
    const auto seconds = [&](MergePolicy p) { return plan_of(row, p).iteration_seconds; };
    const auto gain = [&](MergePolicy p) {
      const double exact = seconds(MergePolicy::kExact);
      return exact > 0 ? seconds(p) / exact : 1;
    };
    out += printed("%7d %10.4g %10.4g %10.4g %10.4g %10.4g %7zu %6zu  %5.2fx    %5.2fx %5.2fx %9.1f\n", row.workers,
                   row.time.a * 1e3, seconds(MergePolicy::kWfbp), seconds(MergePolicy::kSyncEasgd),
                   seconds(MergePolicy::kMgWfbp), seconds(MergePolicy::kExact),
                   plan_of(row, MergePolicy::kMgWfbp).groups.size(), plan_of(row, MergePolicy::kExact).groups.size(),
                   gain(MergePolicy::kWfbp), gain(MergePolicy::kSyncEasgd), gain(MergePolicy::kMgWfbp),
                   speed_up(study, row, MergePolicy::kExact));
  }
  return out;
}

std::string json_of(const MergeStudy& study, const std::vector<MergeRow>& rows) {
  Json json = {{"source", study.source},
               {"assumption", study.assumption},
               {"tensors", study.pass.layers.size()},
               {"bytes", study.bytes()},
               {"forward_seconds", study.pass.forward_seconds},
               {"backward_seconds", study.backward_seconds()},
               {"allreduce", name_of(study.law)},
               {"results", Json::array()}};
  for (const MergeRow& row : rows) {
    Json result = {{"workers", row.workers}, {"a_seconds", row.time.a}, {"b_seconds_per_byte", row.time.b}};
    for (int p = 0; p < kMergePolicyCount; ++p) {
      const auto policy = static_cast<MergePolicy>(p);
      const MergePlan& plan = plan_of(row, policy);
      Json groups = Json::array();
      for (const MergeGroup& g : plan.groups) {
        groups.push_back({{"first", g.first},
                          {"last", g.last},
                          {"bytes", g.bytes},
                          {"ready_seconds", g.ready_seconds},
                          {"start_seconds", g.start_seconds},
                          {"end_seconds", g.end_seconds}});
      }
      result[std::string(name_of(policy))] = {{"iteration_seconds", plan.iteration_seconds},
                                              {"speed_up", speed_up(study, row, policy)},
                                              {"groups", std::move(groups)}};
    }
    json["results"].push_back(std::move(result));
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace canarynet::sim
