#include "sync/policy_name.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <span>

#include "base/quantity.h"
#include "base/text.h"
#include "sync/baseline_workers.h"
#include "sync/esync.h"
#include "sync/group_workers.h"

namespace canarynet::sync {
namespace {

using Kind = PolicySpec::Kind;

struct Name {
  const char* text;
  Kind kind;
  const char* keys;  // "a,b"; the first may stand without its key where `bare`
  bool bare;
};

constexpr Name kNames[] = {
    {"bsp", Kind::kBsp, "quorum,absences,linger", false},
    {"ssp", Kind::kSsp, "s,quorum,absences,linger", true},
    {"asp", Kind::kAsp, "linger", false},
    {"canary", Kind::kCanary, "s,p,linger", false},
    {"ps", Kind::kPs, "", false},
    {"ps-async", Kind::kPsAsync, "", false},
    {"bml", Kind::kBml, "", false},
    {"ako", Kind::kAko, "parts", false},
    {"esync", Kind::kEsync, "rate", false},
    {"esync-nb", Kind::kEsyncNonBlocking, "rate", false},
    {"ripples", Kind::kRipples, "groups,group,threshold,section,inter-intra", true},
    {"ad-psgd", Kind::kAdPsgd, "section", false},
    {"d-psgd", Kind::kDPsgd, "", false},
    {"diloco", Kind::kDiloco, "h,rate,momentum,fragments,quorum,overlap,mix", false},
};

const Name& name_of(Kind kind) {
  // Static schedules are written as ripples, too.
  return *std::find_if(std::begin(kNames), std::end(kNames),
                       [&](const Name& n) { return n.kind == (kind == Kind::kRipplesStatic ? Kind::kRipples : kind); });
}

Status invalid(const std::string& text) { return {CANARY_INVALID_ARGUMENT, text}; }

std::string shown(std::string_view text) {
  std::string printable(text.substr(0, 64));
  make_printable(&printable);
  return printable;
}

std::string quoted(std::string_view text) { return "\"" + shown(text) + "\""; }

template <typename T>
Status read(std::string_view key, std::string_view text, std::int64_t low, std::int64_t high, T* out) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    return invalid(std::string(key) + "=" + shown(text) + " is no whole number from " + std::to_string(low) + " to " +
                   std::to_string(high));
  }
  *out = static_cast<T>(value);
  return {};
}

Status read_rate(std::string_view key, std::string_view text, double high, double* out) {
  std::string_view rest;
  if (!split_number(text, out, &rest) || !rest.empty() || !(*out <= high)) {
    return invalid(std::string(key) + "=" + shown(text) + " is no number from 0 to " +
                   std::to_string(static_cast<int>(high)));
  }
  return {};
}

constexpr Iteration kStalenessMax = 1 << 16;

Status read_groups(std::string_view text, PolicySpec* spec) {
  spec->kind = Kind::kRipples;
  if (text == "smart") return spec->groups = GroupGenerator::Mode::kSmart, Status();
  if (text == "random") return spec->groups = GroupGenerator::Mode::kRandom, Status();
  spec->kind = Kind::kRipplesStatic;
  spec->rotating = text == "static-rotating";
  if (text == "static" || spec->rotating) return {};
  return invalid("there are no groups " + quoted(text) + ": smart, random, static, static-rotating");
}

Status read_option(std::string_view key, std::string_view text, PolicySpec* spec) {
  if (key == "s") return read(key, text, 0, kStalenessMax, &spec->staleness);
  if (key == "p") return read(key, text, 0, 0xffff, &spec->proportion);
  if (key == "linger") {
    const auto seconds = seconds_of(text);
    if (!seconds || !(*seconds <= 3600)) {
      return invalid("linger=" + shown(text) + " is no time of at most an hour, as 5ms");
    }
    spec->linger = Nanos::from_seconds(*seconds);
    return {};
  }
  if (key == "parts") return read(key, text, 1, 1024, &spec->parts);
  if (key == "groups") return read_groups(text, spec);
  if (key == "group") return read(key, text, 2, 0xffff, &spec->group_size);
  if (key == "threshold") return read(key, text, 1, 1'000'000, &spec->slowdown_threshold);
  if (key == "section") return read(key, text, 1, 1'000'000, &spec->section);
  if (key == "inter-intra") return read(key, text, 0, 1, &spec->inter_intra);
  if (key == "h") return read(key, text, 1, 1'000'000, &spec->local_steps.steps);
  if (key == "fragments") return read(key, text, 1, 1024, &spec->local_steps.fragments);
  if (key == "quorum")
    return read(key, text, 1, 100, spec->is_session() ? &spec->quorum : &spec->local_steps.quorum_percent);
  if (key == "absences") return read(key, text, 1, Thresholds::kAbsencesMax, &spec->absences);
  if (key == "overlap") return read(key, text, 0, 1'000'000, &spec->local_steps.overlap);
  if (key == "mix") return read_rate(key, text, 1, &spec->local_steps.mix.emplace());
  if (key == "momentum") return read_rate(key, text, 1, &spec->local_steps.outer_momentum);
  CANARY_CHECK(key == "rate", "an option that nobody reads");
  return read_rate(key, text, 100, spec->kind == Kind::kDiloco ? &spec->local_steps.outer_rate : &spec->outer_rate);
}

std::string spaced(std::string_view list) {
  std::string text;
  for (const auto part : split(list)) text += (text.empty() ? "" : ", ") + std::string(part);
  return text;
}

}  // namespace

Thresholds PolicySpec::thresholds(int colayers) const {
  const auto with_quorum = [this](Thresholds t) {
    t.quorum = quorum;
    t.absences = absences;
    return t;
  };
  switch (kind) {
    case Kind::kSsp:
      return with_quorum(Thresholds::ssp(staleness, colayers));
    case Kind::kAsp:
      return Thresholds::asp(colayers);
    case Kind::kCanary:
      return Thresholds::canary(staleness, proportion);
    default:
      return with_quorum(Thresholds::bsp(colayers));
  }
}

LocalUpdates::Options PolicySpec::updates() const {
  if (kind != Kind::kDiloco) return {.rate = outer_rate};
  return {.rate = local_steps.outer_rate,
          .momentum = local_steps.outer_momentum,
          .mix = local_steps.mix,
          .parts = local_steps.fragments};
}

Result<PolicySpec> parse_policy(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view head = text.substr(0, colon);
  const auto name = std::find_if(std::begin(kNames), std::end(kNames), [&](const Name& n) { return head == n.text; });
  if (name == std::end(kNames)) {
    std::string all;
    for (const Name& n : kNames) all += (all.empty() ? "" : ", ") + std::string(n.text);
    return invalid("there is no policy " + quoted(head) + ": " + all);
  }
  PolicySpec spec;
  spec.kind = name->kind;
  const std::string here = "policy " + std::string(name->text);
  if (colon == std::string_view::npos) {
    if (name->kind == Kind::kSsp) return invalid(here + " needs its bound, as ssp:3");
    return spec;
  }
  const auto keys = split(name->keys);
  std::vector<std::string_view> seen;
  const auto options = split(text.substr(colon + 1));
  for (std::size_t i = 0; i < options.size(); ++i) {
    const std::size_t equal = options[i].find('=');
    std::string_view key = options[i].substr(0, equal);
    std::string_view value = equal == std::string_view::npos ? std::string_view() : options[i].substr(equal + 1);
    if (equal == std::string_view::npos) {
      if (!name->bare || i != 0 || key.empty()) {
        return invalid(here + ": " + quoted(options[i]) + " is no key=value");
      }
      value = key;
      key = keys[0];
    }
    if (*name->keys == 0) return invalid(here + " has no options, and " + quoted(key) + " is none");
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      return invalid(here + " has no option " + quoted(key) + ": " + spaced(name->keys));
    }
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
      return invalid(here + ": " + std::string(key) + " is given twice");
    }
    seen.push_back(key);
    if (Status status = read_option(key, value, &spec); !status.ok()) return status.wrap(here);
  }
  if (spec.kind == Kind::kSsp && std::find(seen.begin(), seen.end(), "s") == seen.end()) {
    return invalid(here + " needs its bound, as ssp:3");
  }
  if (spec.local_steps.fragments > spec.local_steps.steps) {
    return invalid(here + ": fragments=" + std::to_string(spec.local_steps.fragments) + " is more than h=" +
                   std::to_string(spec.local_steps.steps) + ", and one is exchanged per step at most");
  }
  return spec;
}

std::string to_string(const PolicySpec& spec) {
  const PolicySpec standard;
  std::string options;
  const auto add = [&](const std::string& option) { options += (options.empty() ? "" : ",") + option; };
  const auto add_number = [&](const char* key, std::int64_t value) {
    add(std::string(key) + "=" + std::to_string(value));
  };
  const auto add_rate = [&](const char* key, double value) {
    char text[32];
    const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::fixed).ptr;
    add(std::string(key) + "=" + std::string(text, end));
  };
  if (spec.kind == Kind::kSsp) add(std::to_string(spec.staleness));
  if (spec.kind == Kind::kCanary) {
    add_number("s", spec.staleness);
    add_number("p", spec.proportion);
  }
  if (spec.quorum != standard.quorum) add_number("quorum", spec.quorum);
  if (spec.absences != standard.absences) add_number("absences", spec.absences);
  if (spec.is_session() && spec.linger) add("linger=" + std::to_string(spec.linger->count) + "ns");
  if (spec.kind == Kind::kAko && spec.parts != standard.parts) add_number("parts", spec.parts);
  if ((spec.kind == Kind::kEsync || spec.kind == Kind::kEsyncNonBlocking) && spec.outer_rate != standard.outer_rate) {
    add_rate("rate", spec.outer_rate);
  }
  if (spec.kind == Kind::kRipples) {
    add(spec.groups == GroupGenerator::Mode::kRandom ? "random" : "smart");
    if (spec.group_size != standard.group_size) add_number("group", spec.group_size);
    if (spec.slowdown_threshold != standard.slowdown_threshold) add_number("threshold", spec.slowdown_threshold);
    if (!spec.inter_intra) add_number("inter-intra", 0);
  }
  if (spec.kind == Kind::kRipplesStatic) add(spec.rotating ? "static-rotating" : "static");
  const bool sections = spec.kind == Kind::kRipples || spec.kind == Kind::kRipplesStatic || spec.kind == Kind::kAdPsgd;
  if (sections && spec.section != standard.section) add_number("section", spec.section);
  if (spec.kind == Kind::kDiloco) {
    const LocalSteps& l = spec.local_steps;
    add_number("h", l.steps);
    if (l.outer_rate != standard.local_steps.outer_rate) add_rate("rate", l.outer_rate);
    if (l.outer_momentum != standard.local_steps.outer_momentum) add_rate("momentum", l.outer_momentum);
    if (l.fragments != 1) add_number("fragments", l.fragments);
    if (l.quorum_percent != 100) add_number("quorum", l.quorum_percent);
    if (l.overlap != 0) add_number("overlap", l.overlap);
    if (l.mix) add_rate("mix", *l.mix);
  }
  return name_of(spec.kind).text + (options.empty() ? "" : ":" + options);
}

Cluster cluster_of(int hosts, int workers_per_host) {
  Cluster cluster;
  for (int w = 0; w < hosts * workers_per_host; ++w) cluster.host_of.push_back(w / workers_per_host);
  return cluster;
}

Status check(const PolicySpec& spec, const Cluster& cluster) {
  const std::string here = "policy " + std::string(name_of(spec.kind).text) + ": ";
  const int n = cluster.workers();
  if (n < 1) return invalid(here + "no workers");
  if (spec.kind == Kind::kRipplesStatic) {
    const int hosts = cluster.host_of.back() + 1;
    if (n % hosts != 0 || cluster.host_of != cluster_of(hosts, n / hosts).host_of) {
      return invalid(here + "static groups need hosts with equally many workers, numbered host by host");
    }
  }
  if (spec.kind == Kind::kAdPsgd && n < 2) return invalid(here + "it averages pairs, and there is 1 worker");
  if (spec.kind == Kind::kAko && spec.parts > 1 && n < 2) return invalid(here + "there is no peer to send a part to");
  return {};
}

std::unique_ptr<WorkerPolicy> make_worker(const PolicySpec& spec, const Cluster& cluster, int worker,
                                          Nanos first_capability) {
  Exchange exchange;
  switch (spec.kind) {
    case Kind::kBsp:
    case Kind::kSsp:
    case Kind::kAsp:
    case Kind::kCanary:
      exchange.kind = Exchange::Kind::kSession;
      break;
    case Kind::kBml:
      exchange.kind = Exchange::Kind::kAllReduce;
      break;
    case Kind::kPs:
    case Kind::kPsAsync:
      exchange.kind = Exchange::Kind::kServer;
      exchange.waits = spec.kind == Kind::kPs;
      break;
    case Kind::kAko:
      exchange.kind = Exchange::Kind::kPartition;
      exchange.partitions = spec.parts;
      break;
    case Kind::kEsync:
    case Kind::kEsyncNonBlocking:
      return std::make_unique<EsyncWorker>(worker, spec.kind == Kind::kEsync, first_capability);
    case Kind::kRipples:
      return std::make_unique<GroupWorker>(worker, spec.section, false);
    case Kind::kAdPsgd:
      return std::make_unique<GroupWorker>(worker, spec.section, GroupGenerator::passive(worker));
    case Kind::kRipplesStatic: {
      const int hosts = cluster.host_of.back() + 1;
      return std::make_unique<StaticGroupWorker>(worker, hosts, cluster.workers() / hosts, spec.section, spec.rotating);
    }
    case Kind::kDPsgd:
      return std::make_unique<NeighbourWorker>(worker, cluster.workers());
    case Kind::kDiloco:
      return std::make_unique<LocalStepsWorker>(spec.local_steps, worker);
  }
  return std::make_unique<EveryIterationWorker>(worker, exchange);
}

std::unique_ptr<Coordinator> make_coordinator(const PolicySpec& spec, const Cluster& cluster, Random* random) {
  switch (spec.kind) {
    case Kind::kEsync:
    case Kind::kEsyncNonBlocking:
      return std::make_unique<StateServer>(cluster.workers(), spec.kind == Kind::kEsyncNonBlocking, 1_ns,
                                           cluster.meetings);
    case Kind::kRipples:
    case Kind::kAdPsgd: {
      GroupGenerator::Options options;
      options.mode = spec.kind == Kind::kAdPsgd ? GroupGenerator::Mode::kPairs : spec.groups;
      options.host_of = cluster.host_of;
      options.group_size = spec.group_size;
      options.slowdown_threshold = spec.slowdown_threshold;
      options.inter_intra = spec.inter_intra;
      options.meetings = cluster.meetings;
      return std::make_unique<GroupGenerator>(options, random);
    }
    case Kind::kDiloco:
      return std::make_unique<LocalStepsCoordinator>(spec.local_steps, cluster.workers(), cluster.meetings);
    default:
      return nullptr;
  }
}

}  // namespace canarynet::sync
