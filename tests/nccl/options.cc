#include "tests/nccl/options.h"

#include <cstdlib>
#include <functional>
#include <map>

namespace nccltest {
namespace {

struct Setting {
  const char* takes;
  const char* meaning;
  std::function<bool(const std::string&)> set;
};

bool to_int(const std::string& text, int least, int most, int* out) {
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < least || value > most) return false;
  *out = static_cast<int>(value);
  return true;
}

bool to_seconds(const std::string& text, double* out) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= 0 && value <= 86400)) return false;
  *out = value;
  return true;
}

bool one_of(const std::string& text, const std::vector<std::string>& allowed, std::string* out) {
  for (const std::string& candidate : allowed) {
    if (candidate == text) {
      *out = text;
      return true;
    }
  }
  return false;
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (char c : text) {
    if (c == at) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

using Settings = std::vector<std::pair<std::string, Setting>>;

Settings settings_of(Options* o) {
  const auto integer = [](int* to, int least, int most) {
    return [=](const std::string& text) { return to_int(text, least, most, to); };
  };
  const auto seconds = [](double* to) { return [=](const std::string& text) { return to_seconds(text, to); }; };
  return {
      {"plugin",
       {"FILE[,FILE...]", "the plugin of all ranks, or of each rank",
        [=](const std::string& t) {
          o->plugins = split(t, ',');
          return !t.empty();
        }}},
      {"version", {"8..12", "of ncclNetPlugin_vN [the newest exported]", integer(&o->version, 8, 12)}},
      {"ranks", {"N", "processes [2]", integer(&o->ranks, 1, 16)}},
      {"rank",
       {"R|env", "be this rank only; env: CANARY_RANK and CANARY_WORLD_SIZE [fork all ranks]",
        [=](const std::string& t) {
          if (t != "env") return to_int(t, 0, 15, &o->rank);
          const char *rank = std::getenv("CANARY_RANK"), *size = std::getenv("CANARY_WORLD_SIZE");
          return rank && size && to_int(rank, 0, 15, &o->rank) && to_int(size, 1, 16, &o->ranks);
        }}},
      {"meet",
       {"DIR", "where ranks find each other; with --rank",
        [=](const std::string& t) {
          o->meet = t;
          return !t.empty();
        }}},
      {"channels", {"N", "connections per neighbour and direction [2]", integer(&o->channels, 1, 64)}},
      {"pattern",
       {"ring|both|forward", "to the next rank; to both neighbours; rank 0 to rank 1 only [ring]",
        [=](const std::string& t) {
          return one_of(t, {"ring", "both", "forward"}, &o->pattern);
        }}},
      {"contexts", {"N", "communicators per process, at the same time [1]", integer(&o->contexts, 1, 16)}},
      {"reloads", {"N", "times that the plugin is loaded, used, unloaded [1]", integer(&o->reloads, 1, 1000)}},
      {"dev",
       {"N|spread", "the device; spread: connection k uses device k mod devices [0]",
        [=](const std::string& t) {
          int unused;
          o->dev = t;
          return t == "spread" || to_int(t, 0, 63, &unused);
        }}},
      {"size",
       {"mix|BYTES", "messages: NCCL's sizes mixed, or one size such as 64K [mix]",
        [=](const std::string& t) {
          std::string error;
          Traffic unused;
          o->size = t;
          return Traffic::parse(t, 0, &unused, &error);
        }}},
      {"messages",
       {"N", "per connection [400]",
        [=](const std::string& t) {
          int value;
          if (!to_int(t, 1, 1 << 30, &value)) return false;
          o->messages = static_cast<std::uint64_t>(value);
          return true;
        }}},
      {"seconds", {"S", "of measuring [3]", seconds(&o->seconds)}},
      {"warmup", {"S", "before it [0.5]", seconds(&o->warmup)}},
      {"depth", {"N", "requests in flight per connection [8]", integer(&o->depth, 1, kMaxRequests)}},
      {"group", {"N", "receives per irecv; above 1 whatever maxRecvs says [1]", integer(&o->group, 1, 4)}},
      {"check",
       {"full|sample|none", "bytes compared: all, 64 at either end, none [full]",
        [=](const std::string& t) {
          o->check = t == "none" ? Check::kNone : t == "sample" ? Check::kSample : Check::kFull;
          return t == "none" || t == "sample" || t == "full";
        }}},
      {"idle",
       {"yield|spin|US",
        "the progress thread between passes that moved nothing: sched_yield, nothing, sleep once 50 us of them have "
        "passed [yield]",
        [=](const std::string& t) {
          int us;
          if (t == "yield" || t == "spin") {
            o->idle_sleep_us = t == "spin" ? -1 : 0;
            return true;
          }
          if (!to_int(t, 1, 1'000'000, &us)) return false;
          o->idle_sleep_us = us;
          return true;
        }}},
      {"pauses",
       {"0|1", "a progress thread that stands still for a few ms at random; latency: 2 ms before each ping [0]",
        [=](const std::string& t) {
          o->pauses = t == "1";
          return t == "0" || t == "1";
        }}},
      {"seed",
       {"N", "[1]",
        [=](const std::string& t) {
          int value;
          if (!to_int(t, 0, 1 << 30, &value)) return false;
          o->seed = static_cast<std::uint64_t>(value);
          return true;
        }}},
      {"connect-limit", {"S", "for making all connections [20]", seconds(&o->connect_limit)}},
      {"stall-limit", {"S", "without any progress [15]", seconds(&o->stall_limit)}},
      {"error-limit", {"S", "until a survivor must have its error [2]", seconds(&o->error_limit)}},
      {"repeat", {"N", "rounds of abort, churn and kill [10]", integer(&o->repeat, 1, 1'000'000)}},
      {"victim", {"R", "of kill and stop; the one that closes in abort [1]", integer(&o->victim, 0, 15)}},
      {"stop-seconds", {"S", "that the victim of stop stands still [1]", seconds(&o->stop_seconds)}},
      {"gap-ms",
       {"MS", "goodput: print pauses between receptions longer than this [0: none]",
        [=](const std::string& t) { return to_seconds(t, &o->gap_ms); }}},
      {"end-file",
       {"FILE", "goodput: ends when that file is there, --seconds at the latest",
        [=](const std::string& t) {
          o->end_file = t;
          return !t.empty();
        }}},
      {"variant",
       {"one|both", "abort: who closes [both, then one]",
        [=](const std::string& t) {
          return one_of(t, {"one", "both"}, &o->variant);
        }}},
      {"offer",
       {"all|plain",
        "tuner: any algorithm; those without special hardware, and of each collective a cost must change [all]",
        [=](const std::string& t) {
          return one_of(t, {"all", "plain"}, &o->offer);
        }}},
      {"hold",
       {"0|1", "kill: survivors close nothing before all have their error [1]",
        [=](const std::string& t) {
          o->hold = t == "1";
          return t == "0" || t == "1";
        }}},
      {"warn-must",
       {"REGEX", "kill: one WARN line of each survivor has to match all of these; {pid}, {host}: of the killed process",
        [=](const std::string& t) {
          o->warn_must.push_back(t);
          return true;
        }}},
      {"log",
       {"none|warn|info|trace", "plugin lines that are printed [warn]",
        [=](const std::string& t) {
          o->log_level = t == "trace" ? kLogTrace : t == "info" ? kLogInfo : t == "none" ? kLogNone : kLogWarn;
          return t == "none" || t == "warn" || t == "info" || t == "trace";
        }}},
  };
}

constexpr const char* kModes[][2] = {
    {"correctness", "every byte of mixed messages on all connections, then close at once, finalize, unload"},
    {"goodput", "bytes per second, per connection and together; CPU seconds"},
    {"latency", "ping-pong of one message between ranks 0 and 1"},
    {"abort", "closes with requests in flight, at a random moment, on one side or on both"},
    {"churn", "connects, sends a little and closes, again and again; descriptors and threads counted"},
    {"foreign", "foreign bytes at the listening port and as handles; the real connections must still come up"},
    {"mixed", "ranks whose plugins differ: connect must be refused with a WARN"},
    {"kill", "SIGKILL of a rank under load: ncclRemoteError and a WARN on all others"},
    {"stop", "SIGSTOP of a rank under load, for --stop-seconds: nothing may come of it"},
    {"tuner", "the tuner that the file exports: what it may and may not touch"},
    {"list", "the versions that the file exports, and its devices"},
};

}  // namespace

std::string help_text() {
  std::string text =
      "canary-nccl-harness MODE --plugin FILE [--OPTION VALUE ...]: plays NCCL on a net plugin.\n\nModes:\n";
  for (const auto& mode : kModes)
    text += std::string("  ") + mode[0] + std::string(14 - std::string(mode[0]).size(), ' ') + mode[1] + "\n";
  text += "\nOptions:\n";
  Options unused;
  for (const auto& [name, setting] : settings_of(&unused)) {
    const std::string left = "--" + name + " " + setting.takes;
    text += "  " + left + std::string(left.size() < 30 ? 30 - left.size() : 1, ' ') + setting.meaning + "\n";
  }
  return text +
         "\nEach rank prints a line of JSON. Exit status: 0 as it should be, 1 a check failed, 2 wrong options.\n";
}

bool parse_options(const std::vector<std::string>& arguments, Options* out, std::string* error) {
  *out = Options{};
  if (arguments.empty()) {
    *error = "a mode is missing (--help lists them)";
    return false;
  }
  out->mode = arguments[0];
  bool known = false;
  for (const auto& mode : kModes) known = known || out->mode == mode[0];
  if (!known) {
    *error = "there is no mode \"" + out->mode + "\" (--help lists them)";
    return false;
  }
  const Settings settings = settings_of(out);
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    std::string name = arguments[i], value;
    const std::size_t equals = name.find('=');
    if (equals != std::string::npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
    } else if (i + 1 < arguments.size()) {
      value = arguments[++i];
    } else {
      *error = name + " needs a value";
      return false;
    }
    const Setting* found = nullptr;
    for (const auto& [candidate, setting] : settings) {
      if (name == "--" + candidate) found = &setting;
    }
    if (!found) {
      *error = "there is no option " + name + " (--help lists them)";
      return false;
    }
    if (!found->set(value)) {
      *error = name + " takes " + found->takes + ", not \"" + value + "\"";
      return false;
    }
  }
  if (out->plugins.empty() ||
      (out->plugins.size() != 1 && out->plugins.size() != static_cast<std::size_t>(out->ranks))) {
    *error = "--plugin takes one file, or one for each of the " + std::to_string(out->ranks) + " ranks";
    return false;
  }
  if (out->rank >= out->ranks) {
    *error = "--rank " + std::to_string(out->rank) + " of " + std::to_string(out->ranks) + " ranks";
    return false;
  }
  if (out->rank >= 0 && out->meet.empty() && out->ranks > 1) {
    *error = "--rank needs --meet";
    return false;
  }
  if (out->victim >= out->ranks) {
    *error = "--victim " + std::to_string(out->victim) + " of " + std::to_string(out->ranks) + " ranks";
    return false;
  }
  if (out->depth * out->group > kMaxRequests) {
    *error = "--depth times --group is at most " + std::to_string(kMaxRequests);
    return false;
  }
  return Traffic::parse(out->size, out->seed, &out->traffic, error);
}

}  // namespace nccltest
