// The JSON of canaryctl top, with every metric under the name that an exporter gives it.
#include <nlohmann/json.hpp>

#include "tools/ctl/view.h"

namespace canarynet::ctl {
namespace {

using Json = nlohmann::ordered_json;
using ipc::CountersTable;
using ipc::LinkMetric;
using ipc::LinkRow;
using ipc::NicMetric;

Json number(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

void put_metrics(Json* out, std::span<const ipc::MetricInfo> metrics, std::span<const std::uint64_t> values) {
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    const ipc::MetricInfo& m = metrics[i];
    const std::string key = *m.label == '\0' ? m.name : std::string(m.name) + "{" + m.label + "}";
    if (m.unit == ipc::MetricUnit::kNanos) {
      (*out)[key] = static_cast<double>(values[i]) * 1e-9;
    } else {
      (*out)[key] = values[i];
    }
  }
}

Json engine(const EngineView& e) {
  const CountersTable& t = *e.now;
  Json out = {{"pid", e.pid},   {"process", t.process}, {"role", t.role == ipc::Role::kRank ? "rank" : "endpoint"},
              {"host", t.host}, {"build", t.build},     {"engine", t.number}};
  if (t.role == ipc::Role::kRank) {
    out["rank"] = t.rank;
    out["local_ranks"] = t.local_ranks;
    out["world_size"] = t.world_size;
  }
  out["updated_seconds"] = static_cast<double>(t.updated_ns) * 1e-9;
  put_metrics(&out["metrics"], ipc::process_metrics(), t.values);
  out["nics"] = Json::array();
  for (std::uint32_t i = 0; i < t.nics; ++i) {
    Json nic = {{"device", t.nic[i].device},
                {"transport", t.nic[i].transport},
                {"transmit_bytes_per_second", number(e.rate(i, NicMetric::kTransmitBytes))},
                {"receive_bytes_per_second", number(e.rate(i, NicMetric::kReceiveBytes))},
                {"utilisation_ratio", number(e.utilisation(i))}};
    put_metrics(&nic["metrics"], ipc::nic_metrics(), t.nic[i].values);
    out["nics"].push_back(std::move(nic));
  }
  out["links"] = Json::array();
  for (std::uint32_t i = 0; i < t.links; ++i) {
    const LinkRow& l = t.link[i];
    const LinkRow* b = e.before_of(l);
    const auto rate = [&](LinkMetric m) { return b == nullptr ? Json(nullptr) : number(e.rate(l.at(m), b->at(m))); };
    Json link = {{"device", t.nic[l.nic].device},
                 {"lane", l.lane},
                 {"peer", l.peer},
                 {"remote", l.remote},
                 {"transmit_bytes_per_second", rate(LinkMetric::kTransmitBytes)},
                 {"receive_bytes_per_second", rate(LinkMetric::kReceiveBytes)}};
    put_metrics(&link["metrics"], ipc::link_metrics(), l.values);
    out["links"].push_back(std::move(link));
  }
  return out;
}

std::string line(const Json& out) {
  // Our own text is printable ASCII; a note may quote text that is not.
  return out.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string links_json(const Look& before, const Look& after) {
  Json out = {{"hidden_processes", after.scan.hidden}, {"passed_over", after.scan.notes}, {"links", Json::array()}};
  for (const EngineView& e : compare(before, after)) {
    for (std::uint32_t i = 0; i < e.now->links; ++i) {
      const LinkRow& l = e.now->link[i];
      const auto known = [&](LinkMetric m, double unit) {
        return l.at(m) == 0 ? Json(nullptr) : Json(static_cast<double>(l.at(m)) * unit);
      };
      const auto age = e.age(l, after.taken);
      out["links"].push_back({{"pid", e.pid},
                              {"process", e.now->process},
                              {"peer", l.peer},
                              {"device", e.now->nic[l.nic].device},
                              {"remote", l.remote},
                              {"lane", l.lane},
                              {"up", l.at(LinkMetric::kUp) != 0},
                              {"alpha_seconds", known(LinkMetric::kAlpha, 1e-9)},
                              {"beta_bytes_per_second", known(LinkMetric::kBeta, 1)},
                              {"jitter_seconds", known(LinkMetric::kJitter, 1e-9)},
                              {"share_ratio", number(e.share(l))},
                              {"losses", losses(l)},
                              {"age_seconds", age ? Json(age->seconds()) : Json(nullptr)}});
    }
  }
  return line(out);
}

std::string top_json(const Look& before, const Look& after) {
  Json out = {{"taken_seconds", after.taken.seconds()},
              {"interval_seconds", (after.taken - before.taken).seconds()},
              {"hidden_processes", after.scan.hidden},
              {"passed_over", after.scan.notes},
              {"engines", Json::array()}};
  for (const EngineView& e : compare(before, after)) out["engines"].push_back(engine(e));
  return line(out);
}

}  // namespace canarynet::ctl
