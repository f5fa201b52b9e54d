#include "tools/run/state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/un.h>
#include <unistd.h>

#include <sstream>

#include "tools/run/values.h"

namespace canarynet::run {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string milliseconds(Nanos t) {
  char text[32];
  ::snprintf(text, sizeof text, "%.3f", static_cast<double>(t.count) / 1e6);
  return text;
}

void write_nic(std::ostringstream& out, const RunState& s, const Port& p) {
  const NicState& nic = s.bed->nic(p.host, p.nic);
  out << "{\"device\": " << quoted(p.device) << ", \"address\": " << quoted(p.address) << ", \"prefix\": " << p.prefix;
  if (!p.gateway.empty()) out << ", \"gateway\": " << quoted(p.gateway);
  out << ", \"switch\": " << quoted(s.bed->wiring().switches[static_cast<std::size_t>(p.switch_index)])
      << ", \"switch_device\": " << quoted(s.bed->switch_device(p)) << ", \"fabric_pid\": " << s.init_pid
      << ", \"rate\": " << quoted(rate_text(nic.rate)) << ", \"rate_bits_per_second\": " << nic.rate
      << ", \"up\": " << (nic.up ? "true" : "false") << ", \"blackhole\": " << (nic.blackhole ? "true" : "false")
      << ", \"loss_ppm\": " << nic.loss_ppm << "}";
}

void write_topology(std::ostringstream& out, const RunOptions& o) {
  out << ",\n  \"topology\": " << quoted(o.topology_text) << ",\n  \"nics_per_host\": " << o.nics;
}

void write_bed(std::ostringstream& out, const RunState& s) {
  const RunOptions& o = *s.options;
  write_topology(out, o);
  out << ",\n  \"mtu\": " << o.mtu << ",\n  \"fabric\": {\"kind\": \"namespaces\", \"pid\": " << s.init_pid << "}";
  if (s.round_trip.min > Nanos{}) {
    out << ",\n  \"rtt_ms\": {\"min\": " << milliseconds(s.round_trip.min)
        << ", \"median\": " << milliseconds(s.round_trip.median) << "}";
  }
  out << ",\n  \"hosts\": [";
  for (int h = 0; h < o.hosts; ++h) {
    out << (h > 0 ? "," : "") << "\n    {\"id\": \"host-" << h << "\", \"pid\": " << s.bed->holder(h);
    if (o.ctl) out << ", \"control_address\": \"" << control_address(h) << "\"";
    out << ", \"nics\": [";
    for (int k = 0; k < o.nics; ++k) {
      out << (k > 0 ? "," : "") << "\n      ";
      write_nic(out, s, s.bed->wiring().port(h, k));
    }
    out << "]}";
  }
  out << "]";
}

// Hosts have no processes and NICs no devices of their own here: the file lists only the addresses that stand for them.
void write_aliases(std::ostringstream& out, const RunOptions& o) {
  const Wiring wiring = make_wiring(o);
  write_topology(out, o);
  out << ",\n  \"fabric\": {\"kind\": \"alias\", \"emulated\": true},\n  \"hosts\": [";
  for (int h = 0; h < o.hosts; ++h) {
    out << (h > 0 ? "," : "") << "\n    {\"id\": \"host-" << h << "\", \"nics\": [";
    for (int k = 0; k < o.nics; ++k) {
      const Port& p = wiring.port(h, k);
      const std::int64_t rate = o.rates.at(h, k, std::int64_t{0});
      out << (k > 0 ? "," : "") << "\n      {\"device\": \"lo:" << k << "\", \"address\": " << quoted(alias_of(p))
          << ", \"switch\": " << quoted(wiring.switches[static_cast<std::size_t>(p.switch_index)])
          << ", \"rate\": " << quoted(rate_text(rate)) << ", \"rate_bits_per_second\": " << rate
          << ", \"emulated\": true}";
    }
    out << "]}";
  }
  out << "]";
}

}  // namespace

void StatePaths::remove() const {
  if (folder.empty()) return;
  for (const auto& path : {state, state + ".new", control}) ::unlink(path.c_str());
  ::rmdir(folder.c_str());
}

Result<StatePaths> make_state_paths(const std::string& state_path) {
  const char* base = ::getenv("TMPDIR");
  std::string folder = std::string(base != nullptr && *base != '\0' ? base : "/tmp") + "/canary-run.XXXXXX";
  // A socket's path is limited to 107 characters, and the state file must hold it without escapes.
  if (folder.size() + 16 > sizeof(sockaddr_un::sun_path) || folder.find_first_of("\"\\\n") != std::string::npos) {
    folder = "/tmp/canary-run.XXXXXX";
  }
  if (::mkdtemp(folder.data()) == nullptr) return system_error(folder, errno);
  StatePaths paths{folder, state_path.empty() ? folder + "/state.json" : state_path, folder + "/control"};
  if (!state_path.empty() && state_path.front() != '/') {
    char here[4096];
    if (::getcwd(here, sizeof here) != nullptr) paths.state = std::string(here) + "/" + state_path;
  }
  return paths;
}

std::string to_json(const RunState& s, const StatePaths& paths) {
  const RunOptions& o = *s.options;
  std::ostringstream out;
  out << "{\n  \"version\": 1,\n  \"pid\": " << s.pid << ",\n  \"control\": \"" << paths.control
      << "\",\n  \"join\": " << quoted(s.join) << ",\n  \"world_size\": " << o.ranks;
  if (s.bed != nullptr) write_bed(out, s);
  if (o.aliases()) write_aliases(out, o);
  out << ",\n  \"ranks\": [";
  for (std::size_t r = 0; r < s.ranks.size(); ++r) {
    out << (r > 0 ? "," : "") << "\n    {\"rank\": " << r << ", \"host\": " << o.host_of(static_cast<int>(r))
        << ", \"pid\": " << s.ranks[r] << "}";
  }
  out << "]\n}\n";
  return out.str();
}

Status write_state(const RunState& state, const StatePaths& paths) {
  const std::string fresh = paths.state + ".new";
  if (auto s = write_file(fresh, to_json(state, paths)); !s.ok()) return s;
  if (::rename(fresh.c_str(), paths.state.c_str()) != 0) return system_error(paths.state, errno);
  return {};
}

Result<std::string> control_path(const std::string& state_path) {
  const std::string text = read_text(state_path), key = "\"control\": \"";
  const auto at = text.find(key);
  const auto end = at == std::string::npos ? at : text.find('"', at + key.size());
  if (end == std::string::npos) {
    return Status(
        CANARY_INVALID_ARGUMENT,
        "link " + state_path + ": takes the state file of a running canary-run (CANARY_RUN_STATE of its ranks)");
  }
  return text.substr(at + key.size(), end - at - key.size());
}

}  // namespace canarynet::run
