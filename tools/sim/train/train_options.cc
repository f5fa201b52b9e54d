#include "tools/sim/train/train_options.h"

#include <charconv>
#include <cmath>

#include "base/text.h"
#include "tools/arguments.h"
#include "tools/sim/print.h"

namespace canarynet::sim {
namespace {

constexpr int kHostsMax = 64;
constexpr int kNicsMax = 8;
constexpr double kSlowMax = 1e6;
constexpr double kLossMax = 50;  // percent

Status invalid(const std::string& text) { return {CANARY_INVALID_ARGUMENT, text}; }

// A number that is not negative, with `unit` behind it.
bool read_number(std::string_view text, char unit, double* value) {
  if (!text.ends_with(unit)) return false;
  text.remove_suffix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty() && *value >= 0;
}

}  // namespace

std::string TrainTopology::name() const {
  if (kind == Kind::kBCube) return printed("bcube:%d,%d", radix, levels);
  if (kind == Kind::kMesh) return "mesh";
  return printed("flat:%d", rails);
}

int TrainTopology::nics(int hosts) const {
  if (kind == Kind::kBCube) return levels;
  return kind == Kind::kMesh ? hosts - 1 : rails;
}

Result<TrainTopology> parse_topology(std::string_view text) {
  TrainTopology topology;
  const std::size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  const std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  if (kind == "flat") {
    const auto rails = rest.empty() ? std::optional(1) : tools::whole(rest, 1, kNicsMax);
    if (rails && text.back() != ':') return topology.rails = *rails, topology;
  } else if (kind == "mesh" && colon == std::string_view::npos) {
    return topology.kind = TrainTopology::Kind::kMesh, topology;
  } else if (kind == "bcube") {
    const auto parts = split(rest);
    const auto radix = parts.size() == 2 ? tools::whole(parts[0], 2, kHostsMax) : std::nullopt;
    const auto levels = parts.size() == 2 ? tools::whole(parts[1], 1, 6) : std::nullopt;
    if (radix && levels && std::pow(*radix, *levels) <= kHostsMax) {
      topology.kind = TrainTopology::Kind::kBCube;
      topology.radix = *radix;
      topology.levels = *levels;
      return topology;
    }
  }
  return invalid("flat, flat:NICS, mesh, or bcube:R,L with up to " + std::to_string(kHostsMax) + " hosts");
}

Result<std::vector<Slowness>> parse_slow(std::string_view text, int workers) {
  const Status wrong = invalid(
      "WORKER:5x (five times as slow) or WORKER:+5x (sleeps five iterations more), with @10% in a tenth of its "
      "iterations, workers from 0 to " +
      std::to_string(workers - 1));
  std::vector<Slowness> slow;
  for (std::string_view one : split(text)) {
    const std::size_t colon = one.find(':');
    if (colon == std::string_view::npos) return wrong;
    double percent = 100;
    if (const std::size_t at = one.find('@'); at != std::string_view::npos) {
      if (!read_number(one.substr(at + 1), '%', &percent) || percent == 0 || percent > 100) return wrong;
      one = one.substr(0, at);
    }
    const auto worker = tools::whole(one.substr(0, colon), 0, workers - 1);
    std::string_view amount = one.substr(colon + 1);
    const bool added = amount.starts_with('+');
    if (added) amount.remove_prefix(1);
    double value = 0;
    if (!worker || !read_number(amount, 'x', &value) || value > kSlowMax || (!added && value == 0)) return wrong;
    slow.push_back({*worker, added ? 1 : value, added ? value : 0, percent / 100});
  }
  if (slow.empty()) return wrong;
  return slow;
}

Result<std::vector<LossyNic>> parse_lossy(std::string_view text) {
  const Status wrong = invalid("NIC:10% (of every host) or HOST.NIC:10%, above 0 and up to " +
                               std::to_string(static_cast<int>(kLossMax)) + "%, several with commas");
  std::vector<LossyNic> lossy;
  for (std::string_view one : split(text)) {
    const std::size_t colon = one.find(':');
    if (colon == std::string_view::npos || !one.ends_with('%')) return wrong;
    const std::string_view place = one.substr(0, colon), amount = one.substr(colon + 1, one.size() - colon - 2);
    const std::size_t dot = place.find('.');
    const bool everywhere = dot == std::string_view::npos;
    const auto host = everywhere ? std::optional(-1) : tools::whole(place.substr(0, dot), 0, kHostsMax - 1);
    const auto nic = tools::whole(everywhere ? place : place.substr(dot + 1), 0, kNicsMax - 1);
    double percent = 0;
    const auto [end, error] = std::from_chars(amount.data(), amount.data() + amount.size(), percent);
    const bool read = error == std::errc() && end == amount.data() + amount.size();
    if (!host || !nic || !read || !(percent > 0 && percent <= kLossMax)) return wrong;
    lossy.push_back({*host, *nic, percent / 100});
  }
  if (lossy.empty()) return wrong;
  return lossy;
}

Status check(const TrainOptions& o) {
  using Kind = sync::PolicySpec::Kind;
  const int workers = o.workers();
  if (workers % o.workers_per_host != 0) {
    return invalid(printed("%d workers do not fill hosts of %d", workers, o.workers_per_host));
  }
  if (o.hosts() > kHostsMax) return invalid(printed("%d hosts are more than %d", o.hosts(), kHostsMax));
  const bool flat = o.topology.kind == TrainTopology::Kind::kFlat;
  if (o.topology.kind == TrainTopology::Kind::kBCube) {
    const int hosts = static_cast<int>(std::lround(std::pow(o.topology.radix, o.topology.levels)));
    if (hosts != o.hosts()) {
      return invalid(o.topology.name() + printed(" has %d hosts, and %d workers at %d per host are %d", hosts, workers,
                                                 o.workers_per_host, o.hosts()));
    }
  }
  if (o.topology.kind == TrainTopology::Kind::kMesh && o.hosts() + o.servers() > 9) {
    return invalid(printed("a mesh of %d hosts needs more than 8 NICs each", o.hosts() + o.servers()));
  }
  const int hosts = o.hosts() + o.servers(), nics = o.topology.nics(hosts);
  for (const LossyNic& lossy : o.lossy) {
    if (lossy.host >= hosts || lossy.nic >= nics)
      return invalid(printed("--lossy: there are %d hosts, from 0, with %d NICs each, from 0", hosts, nics));
  }
  const std::string name = sync::to_string(o.policy);
  if (o.policy.kind == Kind::kCanary && o.policy.proportion > o.colayers) {
    return invalid("policy " + name + printed(": p is more than the %d colayers", o.colayers));
  }
  const bool groups =
      o.policy.kind == Kind::kRipples || o.policy.kind == Kind::kRipplesStatic || o.policy.kind == Kind::kAdPsgd;
  if (groups && !flat && o.topology.kind != TrainTopology::Kind::kMesh) {
    return invalid("policy " + name + ": its groups need workers that meet, and on " + o.topology.name() +
                   " not all do; it runs on flat and mesh");
  }
  if ((o.policy.kind == Kind::kPs || o.servers() > 0) && o.topology.kind == TrainTopology::Kind::kBCube) {
    return invalid("policy " + name + ": a server on " + o.topology.name() +
                   " does not meet all workers; it runs on flat and mesh");
  }
  if (o.codec && !o.reduces_gradients() && !o.exchanges_deltas()) {
    return invalid(
        "policy " + name +
        ": --codec goes with policies that reduce gradients or deltas: bsp, ssp, asp, canary, bml, ps, esync "
        "and diloco");
  }
  if (o.codec) {
    const std::string codec = "codec " + to_text(*o.codec);
    if (const auto number = codec_number(*o.codec); !number.ok()) return number.status();
    if (needs_shape(o.codec->kind)) return invalid(codec + " is for matrices, and colayers have no shape");
    if (o.codec->kind == CodecKind::kArTopK && o.policy.kind != Kind::kBml)
      return invalid(codec + " goes with bml: elsewhere not all workers have a gradient at the same time");
  }
  return sync::check(o.policy, sync::cluster_of(o.hosts(), o.workers_per_host));
}

}  // namespace canarynet::sim
