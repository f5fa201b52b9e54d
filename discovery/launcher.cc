#include "discovery/launcher.h"

#include <charconv>

namespace canarynet {
namespace {

struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
};

constexpr Launcher kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"SLURM", "SLURM_PROCID", "SLURM_NTASKS"},
};

constexpr int kSlurmPortFirst = 20'000, kSlurmPorts = 10'000, kStepsPerJob = 16;

Status meet_by_torchrun(const Environment& environment, std::string* join) {
  const char* address = environment("MASTER_ADDR");
  long long port = 0;
  bool set = false;
  if (Status s = read_number(environment, "MASTER_PORT", &port, &set); !s.ok()) return s;
  if (address == nullptr || *address == '\0' || !set) return {};
  if (port >= 65535)
    return {CANARY_INVALID_SETTING,
            "MASTER_PORT=" + std::to_string(port) + ": Canary takes the port after it, there is none"};
  const bool bare_ipv6 = std::string_view(address).find(':') != std::string_view::npos && *address != '[';
  *join = std::string("tcp://") + (bare_ipv6 ? "[" : "") + address + (bare_ipv6 ? "]" : "") + ":" +
          std::to_string(port + 1);
  return {};
}

Status meet_by_slurm(const Environment& environment, std::string* join) {
  const char* list = environment("SLURM_STEP_NODELIST");
  if (list == nullptr) list = environment("SLURM_JOB_NODELIST");
  long long job = 0, step = 0;
  bool has_job = false, has_step = false;
  if (Status s = read_number(environment, "SLURM_JOB_ID", &job, &has_job); !s.ok()) return s;
  if (Status s = read_number(environment, "SLURM_STEP_ID", &step, &has_step); !s.ok()) return s;
  if (list == nullptr || !has_job) return {};
  const std::string host = first_host_of(list);
  if (host.empty()) {
    return {CANARY_INVALID_SETTING,
            "the list of hosts \"" + std::string(list) + "\" of SLURM can't be read: set CANARY_RENDEZVOUS=host:port"};
  }
  const long long port = kSlurmPortFirst + (job * kStepsPerJob + step % kStepsPerJob) % kSlurmPorts;
  *join = "tcp://" + host + ":" + std::to_string(port);
  return {};
}

}  // namespace

std::string first_host_of(const std::string& list) {
  const std::size_t bracket = list.find('[');
  const std::size_t comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  // prefix[03-07,9]suffix
  const std::size_t end = list.find(']', bracket);
  const std::size_t digits = bracket + 1;
  const std::size_t digits_end = list.find_first_not_of("0123456789", digits);
  if (end == std::string::npos || digits_end == digits || digits_end > end) return {};
  std::string suffix = list.substr(end + 1, list.find(',', end) - end - 1);
  if (suffix.find('[') != std::string::npos) return {};  // several dimensions: rare, and not worth guessing
  return list.substr(0, bracket) + list.substr(digits, digits_end - digits) + suffix;
}

Status read_number(const Environment& environment, const char* name, long long* value, bool* set, long long max) {
  const char* text = environment(name);
  *set = text != nullptr;
  if (!*set) return {};
  const std::string_view view(text);
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), *value);
  if (error == std::errc() && end == view.data() + view.size() && *value >= 0 && *value <= max) return {};
  const std::string range = max == kAnyNumber ? "" : " from 0 to " + std::to_string(max);
  return {CANARY_INVALID_SETTING, std::string(name) + "=\"" + text + "\": takes a whole number" + range};
}

Result<Launch> read_launch(const Environment& environment) {
  Launch launch;
  const Launcher* found = nullptr;
  for (const Launcher& l : kLaunchers) {
    long long rank = 0, size = 0;
    bool has_rank = false, has_size = false;
    if (Status s = read_number(environment, l.rank, &rank, &has_rank); !s.ok()) return s;
    if (Status s = read_number(environment, l.size, &size, &has_size); !s.ok()) return s;
    if (!has_rank || !has_size) continue;
    if (size < 1 || size > 65535 || rank >= size) {
      return Status(CANARY_INVALID_SETTING, std::string(l.rank) + "=" + std::to_string(rank) + " and " + l.size + "=" +
                                                std::to_string(size) + ": takes a rank below a size from 1 to 65535");
    }
    launch.rank = static_cast<int>(rank);
    launch.world_size = static_cast<int>(size);
    launch.launcher = l.name;
    found = &l;
    break;
  }
  if (const char* rendezvous = environment("CANARY_RENDEZVOUS"); rendezvous != nullptr && *rendezvous != '\0') {
    const std::string text = rendezvous;
    launch.join = text.starts_with("tcp://") ? text : "tcp://" + text;
    launch.join_source = "CANARY_RENDEZVOUS";
    return launch;
  }
  if (found == nullptr || launch.world_size == 1) return launch;
  const std::string_view name = found->name;
  Status status;
  if (name == "torchrun") {
    status = meet_by_torchrun(environment, &launch.join);
    launch.join_source = "MASTER_ADDR:MASTER_PORT+1";
  } else if (name == "SLURM") {
    status = meet_by_slurm(environment, &launch.join);
    launch.join_source = "SLURM's first host";
  } else {
    launch.no_join =
        "Open MPI's variables hold no address where the ranks could meet: set CANARY_RENDEZVOUS=host:port, a free port "
        "on rank 0's "
        "host (mpirun -x CANARY_RENDEZVOUS=host:port)";
  }
  if (!status.ok()) launch.no_join = status.text();
  return launch;
}

}  // namespace canarynet
