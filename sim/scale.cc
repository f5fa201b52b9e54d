#include "sim/scale.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "sim/cluster.h"

namespace canarynet {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Counts only memory that is this process's own: pages of its program's file are read when they are first run.
double resident_bytes() {
  // Free pages of the heap go back first, or a job that finds them there would seem to take nothing.
  ::malloc_trim(0);
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  long all = 0, resident = 0, of_files = 0;
  const int read = std::fscanf(file, "%ld %ld %ld", &all, &resident, &of_files);
  std::fclose(file);
  return read == 3 ? static_cast<double>(resident - of_files) * static_cast<double>(::sysconf(_SC_PAGESIZE)) : 0;
}

ScaleFigures::Channels channels_of(Cluster& cluster) {
  ScaleFigures::Channels out;
  for (int h = 0; h < cluster.hosts(); ++h) {
    const std::uint64_t open = cluster.engine(h).counters().peers;
    out.mean += static_cast<double>(open) / cluster.hosts();
    out.most = std::max(out.most, open);
  }
  return out;
}

std::string first_failure(Cluster& cluster) {
  for (int h = 0; h < cluster.hosts(); ++h) {
    const Status& status = cluster.engine(h).join_status();
    if (!status.ok()) return "engine " + std::to_string(h) + ": " + status.to_string();
  }
  return "the join did not end";
}

}  // namespace

ScaleFigures measure_scale(const ScaleOptions& options) {
  ClusterOptions c;
  c.hosts = options.engines;
  c.wiring = Wiring::flat(options.engines, options.rails);
  if (options.engines_per_machine > 1) {
    for (int h = 0; h < options.engines; ++h) c.wiring.machine.push_back(h / options.engines_per_machine);
  }
  c.fabric.nic = NicOptions::link(20_us, BytesPerSec::from_mbit(10'000));
  c.settings.algo = options.algo;
  c.settings.connect_at_join = options.connect_at_join;
  c.amend = [&](int host, EngineOptions* e) {
    e->host_id = e->host_name = "host-" + std::to_string(host / options.engines_per_machine);
  };

  ScaleFigures out;
  const double before = resident_bytes();
  Cluster cluster(std::move(c));
  auto begin = std::chrono::steady_clock::now();
  const bool joined = cluster.join(60_s);
  out.join = cluster.now();
  out.join_seconds = seconds_since(begin);
  out.bytes_per_engine = (resident_bytes() - before) / options.engines;
  if (!joined) {
    out.wrong = first_failure(cluster);
    return out;
  }
  out.joined = channels_of(cluster);

  const auto ranks = static_cast<std::size_t>(options.engines);
  std::vector<std::vector<std::int32_t>> input(ranks), output(ranks);
  std::vector<std::unique_ptr<OpTicket>> tickets;
  begin = std::chrono::steady_clock::now();
  for (std::size_t r = 0; r < ranks; ++r) {
    input[r].resize(options.count);
    output[r].resize(options.count);
    for (std::size_t i = 0; i < options.count; ++i) input[r][i] = static_cast<std::int32_t>((r * 7 + i) % 1000);
    tickets.push_back(std::make_unique<OpTicket>());
    cluster.all_reduce(static_cast<int>(r), input[r].data(), output[r].data(), options.count, CANARY_I32, CANARY_SUM,
                       tickets.back().get());
  }
  const Nanos entered = cluster.now();
  const auto all_done = [&] {
    return std::all_of(tickets.begin(), tickets.end(), [](const auto& t) { return t->done(); });
  };
  if (!cluster.run_until(all_done, 60_s)) out.wrong = "the all-reduce did not end";
  out.reduce = cluster.now() - entered;
  out.reduce_seconds = seconds_since(begin);
  out.reduced = channels_of(cluster);
  std::vector<std::int32_t> sum(options.count);
  for (const auto& in : input) {
    for (std::size_t i = 0; i < options.count; ++i) sum[i] += in[i];
  }
  for (std::size_t r = 0; r < ranks && out.wrong.empty(); ++r) {
    if (tickets[r]->code != CANARY_OK) {
      out.wrong = "rank " + std::to_string(r) + ": " + tickets[r]->status.to_string();
    } else if (output[r] != sum) {
      out.wrong = "rank " + std::to_string(r) + " has another sum";
    }
  }
  return out;
}

}  // namespace canarynet
