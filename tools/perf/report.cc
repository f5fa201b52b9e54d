#include "tools/perf/report.h"

#include <cstdarg>
#include <cstdio>

namespace canarynet::perf {
namespace {

__attribute__((format(printf, 1, 2))) std::string format(const char* pattern, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(line, sizeof line, pattern, arguments);
  va_end(arguments);
  return line;
}

const char* check_text(Check check) {
  switch (check) {
    case Check::kNone:
      return "off";
    case Check::kEnds:
      return "warm-up and last operations";
    case Check::kEvery:
      return "every operation";
  }
  return "";
}

const char* redop_text(const Row& row, const PerfOptions& options) {
  return reduces(row.op) ? name_of(options.redop).data() : "none";
}

nlohmann::json json_nic(const NicRow& nic) {
  return {{"rank", nic.rank},
          {"device", nic.device},
          {"tx_bytes", nic.tx_bytes},
          {"rx_bytes", nic.rx_bytes},
          {"kernel_tx_bytes", nic.kernel_tx_bytes},
          {"retransmits", nic.retransmits},
          {"failovers", nic.failovers},
          {"rate_bytes_per_second", nic.rate},
          {"lanes_up", nic.lanes_up}};
}

}  // namespace

std::string table_head(const PerfOptions& options, int ranks) {
  const std::string threads = options.threads > 1 ? " (" + std::to_string(options.threads) + " per process)" : "";
  return format("# canary-perf %s: %d ranks%s, %s, %s, %s memory, check: %s\n", canary_version(), ranks,
                threads.c_str(), options.in_place ? "in place" : "out of place",
                options.in_flight > 1 ? (std::to_string(options.in_flight) + " in flight").c_str() : "blocking",
                options.arena ? "the library's" : "ordinary", check_text(options.check)) +
         (options.in_flight > 1 ? "# time: elapsed / operations" : "# time: median of rank 0's operations") +
         "; kernel: the device's own tx_bytes beside Canary's count\n";
}

std::string table_titles(Op op) {
  return format("# %s\n#%12s %12s %5s %5s %10s %8s %8s %6s %10s %10s %9s  %s\n", name_of(op).data(), "size (B)",
                "count", "type", "redop", "time (us)", "algbw", "busbw", "#wrong", "p50 (us)", "p99 (us)", "cpu s/GB",
                "algorithm");
}

std::string table_row(const Row& row, const PerfOptions& options) {
  std::string text = format("%13llu %12llu %5s %5s %10.1f %8.4f %8.4f %6s %10.1f %10.1f %9.3f  %s%s\n",
                            static_cast<unsigned long long>(row.bytes), static_cast<unsigned long long>(row.count),
                            name_of(options.type).data(), redop_text(row, options), row.time_us, row.algbw, row.busbw,
                            row.checked == 0 ? "N/A" : std::to_string(row.wrong).c_str(), row.p50_us, row.p99_us,
                            row.cpu_s_per_gb, row.algorithm.c_str(), row.failed ? "  FAILED" : "");
  std::string nics;
  for (const auto& nic : row.nics) {
    if (nic.rank != 0) continue;
    nics += format("%s%s sent %llu kernel %llu", nics.empty() ? "#   " : "; ", nic.device.c_str(),
                   static_cast<unsigned long long>(nic.tx_bytes), static_cast<unsigned long long>(nic.kernel_tx_bytes));
  }
  return nics.empty() ? text : text + nics + "\n";
}

nlohmann::json json_row(const Row& row, const PerfOptions& options) {
  auto own = nlohmann::json::array(), all = nlohmann::json::array();
  for (const auto& nic : row.nics) {
    all.push_back(json_nic(nic));
    if (nic.rank == 0) own.push_back(json_nic(nic));
  }
  return {{"op", name_of(row.op)},
          {"bytes", row.bytes},
          {"count", row.count},
          {"type", name_of(options.type)},
          {"redop", redop_text(row, options)},
          {"algo", row.algorithm},
          {"why", row.why},
          {"iterations", row.iterations},
          {"time_us", row.time_us},
          {"mean_us", row.mean_us},
          {"p50_us", row.p50_us},
          {"p99_us", row.p99_us},
          {"max_us", row.max_us},
          {"algbw_GBps", row.algbw},
          {"busbw_GBps", row.busbw},
          {"wrong", row.wrong},
          {"checked", row.checked},
          {"cpu_s_per_GB", row.cpu_s_per_gb},
          {"failed", row.failed},
          {"nics", own},
          {"all_nics", all}};
}

nlohmann::json json_run(const PerfOptions& options, int ranks) {
  return {{"results", nlohmann::json::array()},   {"version", canary_version()},  {"ranks", ranks},
          {"in_flight", options.in_flight},       {"in_place", options.in_place}, {"check", check_text(options.check)},
          {"ranks_per_process", options.threads}, {"arena", options.arena}};
}

}  // namespace canarynet::perf
