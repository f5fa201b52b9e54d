#include "tools/ctl/info.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>

#include "base/settings.h"
#include "base/text.h"
#include "daemon/ipc/counters.h"
#include "discovery/host.h"
#include "discovery/interfaces.h"
#include "discovery/reverse_path.h"
#include "kernels/reduce.h"
#include "topology/shared_subnet.h"

namespace canarynet::ctl {
namespace {

std::string because(int error) { return std::string("no: ") + std::strerror(error); }

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The kind of memory that processes share.
std::string sealed_memory() {
  const int memory = memfd_create("canaryctl-info", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (memory < 0) return because(errno);
  const bool sealed = fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0;
  const int error = errno;
  const bool write_sealed = fcntl(memory, F_ADD_SEALS, 0x0010 /* F_SEAL_FUTURE_WRITE */) == 0;
  close(memory);
  if (!sealed) return because(error);
  return write_sealed ? "yes, against foreign writers too" : "yes, but not against foreign writers (Linux 5.1)";
}

std::string socket_option(int option, const void* value, socklen_t bytes) {
  const int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (s < 0) return because(errno);
  const bool taken = setsockopt(s, SOL_SOCKET, option, value, bytes) == 0;
  const int error = errno;
  close(s);
  return taken ? "yes" : because(error);
}

bool works_in_a_child(const std::function<bool()>& attempt) {
  const pid_t child = fork();
  if (child == 0) _exit(attempt() ? 0 : 1);
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

std::string namespaces() {
  if (works_in_a_child([] { return unshare(CLONE_NEWNET) == 0; })) return "yes";
  if (works_in_a_child([] { return unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0; })) return "yes, in a user namespace";
  return "no: canary-run --hosts needs root or user namespaces; --fabric alias needs neither";
}

// The facts about rails that share a subnet.
std::string shared_subnets(const std::vector<Rail>& rails) {
  if (std::string deaf = deaf_rail(rails); !deaf.empty()) return deaf + "; set net.ipv4.conf.all.rp_filter=2";
  for (std::size_t i = 0; i < rails.size(); ++i) {
    if (shares_subnet(rails, i)) return describe_shared_subnet(rails, i) + "; lanes are kept apart by device";
  }
  return "";
}

}  // namespace

std::vector<Fact> build_facts(const std::string& dependencies) {
  std::vector<Fact> out{{"build", "version", CANARYNET_VERSION}, {"build", "compiler", CANARYNET_COMPILER}};
  for (const std::string_view part : split(dependencies, '|')) {
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos) continue;
    out.push_back({"dependencies", std::string(part.substr(0, equals)), std::string(part.substr(equals + 1))});
  }
  return out;
}

std::vector<Fact> kernel_facts() {
  std::vector<Fact> out;
  const auto add = [&](const char* name, std::string value) { out.push_back({"kernel", name, std::move(value)}); };
  utsname u{};
  if (uname(&u) == 0) add("release", std::string(u.sysname) + " " + u.release + " " + u.machine);
  add("cores", std::to_string(sysconf(_SC_NPROCESSORS_ONLN)));
  std::size_t count = 0;
  const KernelVariant* variants = kernel_variants(&count);
  std::string names;
  for (std::size_t i = 0; i < count; ++i) names += (i == 0 ? "" : ", ") + std::string(variants[i].name);
  const Status chosen = kernels_status();
  add("reductions", std::string(kernels_name()) + " of " + names + (chosen.ok() ? "" : "; " + chosen.text()));
  const std::string congestion = first_line("/proc/sys/net/ipv4/tcp_available_congestion_control");
  add("TCP congestion control", congestion.empty() ? "not told" : congestion);
  const unsigned rate = 1'000'000;
  add("pacing by TCP", socket_option(SO_MAX_PACING_RATE, &rate, sizeof rate));
  add("lanes bound to a NIC", socket_option(SO_BINDTODEVICE, "lo", 3));
  add("sealed shared memory", sealed_memory());
  add("network namespaces", namespaces());
  return out;
}

std::vector<Fact> nic_facts(bool* ok) {
  std::vector<Fact> out{{"NICs", "host", host_name()}};
  *ok = false;
  const auto found = list_interfaces();
  if (!found.ok()) {
    out.push_back({"NICs", "none", found.status().text()});
    return out;
  }
  std::vector<Rail> rails;
  std::string refused;
  if (auto settings = Settings::from_environment(); !settings.ok()) {
    refused = settings.status().text();
  } else if (const Status together = settings.value().check(); !together.ok()) {
    refused = together.text();
  } else {
    auto chosen = choose_rails(settings.value(), found.value(), false);
    if (chosen.ok()) {
      rails = chosen.take();
    } else {
      refused = chosen.status().text();
    }
  }
  for (const Interface& i : found.value()) {
    const auto rail = std::find_if(rails.begin(), rails.end(), [&](const Rail& r) { return r.device == i.name; });
    std::string value = i.address.to_string() + "/" + std::to_string(i.address.prefix_bits);
    const auto mbit = i.nominal.count / BytesPerSec::from_mbit(1).count;
    value += mbit != 0 ? ", " + std::to_string(mbit) + " Mbit/s" : ", speed unknown";
    value += rail != rails.end() ? ", rail " + std::to_string(rail - rails.begin()) : ", not used";
    out.push_back({"NICs", i.name, value});
  }
  for (std::size_t i = 0; i < rails.size(); ++i) {
    if (rails[i].device.starts_with("lo:"))
      out.push_back({"NICs", rails[i].device, rails[i].address.to_string() + ", rail " + std::to_string(i)});
  }
  if (const std::string subnets = shared_subnets(rails); !subnets.empty())
    out.push_back({"NICs", "one subnet", subnets});
  if (!refused.empty()) out.push_back({"NICs", "refused", refused});
  *ok = refused.empty();
  return out;
}

std::string info_text(const std::vector<Fact>& facts) {
  std::string out, section;
  for (const Fact& f : facts) {
    if (f.section != section) out += (out.empty() ? "" : "\n") + f.section + "\n";
    section = f.section;
    out +=
        "  " + f.name + std::string(std::max<std::size_t>(26, f.name.size() + 2) - f.name.size(), ' ') + f.value + "\n";
  }
  return out;
}

}  // namespace canarynet::ctl
