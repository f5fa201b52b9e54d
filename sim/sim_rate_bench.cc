// sim/sim_rate_bench.cc -- how many all-reduces a second the simulator runs: 8 ranks, 2 rails, 64 pieces of 1 KiB sent per rank, real CRC
// and reduction, faults on (loss, duplicates, reordering, corruption). Prints the rate per core and a checksum of the results.
//
//   canary-sim-rate [SECONDS] [MIN_PER_SECOND]     exits 1 below the minimum
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "kernels/crc32c.h"
#include "sim/cluster.h"
#include "sim/oracle.h"

using namespace canarynet;

namespace {

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 3.0;
  const double minimum = argc > 2 ? std::atof(argv[2]) : 0.0;
  constexpr int kRanks = 8;
  ClusterOptions o;
  o.hosts = kRanks;
  o.wiring = Wiring::flat(kRanks, 2);
  o.fabric.stream = false;
  o.fabric.bad_header_resets = false;
  o.fabric.nic = NicOptions::link(20_us, BytesPerSec::from_mbit(10'000));
  o.fabric.nic.out.loss_ppm = 1'000;
  o.fabric.nic.out.duplicate_ppm = 5'000;
  o.fabric.nic.out.reorder_ppm = 5'000;
  o.fabric.nic.out.corrupt_ppm = 1'000;
  o.settings.algo = "ring";
  o.settings.piece_bytes = Bytes{1024};
  Cluster cluster(o);
  if (!cluster.join()) return std::puts("the cluster did not join"), 1;
  // A ring sends 2 (n - 1) / n of the buffer: 64 pieces of 1 KiB per rank are a buffer of 64 * 8 / 14 KiB, rounded up to whole pieces.
  oracle::Shape shape;
  shape.ranks = kRanks;
  shape.count = 40 * 1024 / 4;
  std::vector<std::vector<std::byte>> in(kRanks), out(kRanks);
  std::vector<std::byte> expected(oracle::output_bytes(shape));
  for (int r = 0; r < kRanks; ++r) {
    in[static_cast<std::size_t>(r)].resize(oracle::input_bytes(shape));
    out[static_cast<std::size_t>(r)].resize(oracle::output_bytes(shape));
    oracle::fill_input(shape, r, in[static_cast<std::size_t>(r)].data());
  }
  oracle::expected_output(shape, 0, expected.data());
  OpTicket tickets[kRanks];
  std::uint64_t done = 0, wrong = 0;
  std::uint32_t checksum = 0;
  const double began = cpu_seconds();
  const std::uint64_t polls = cluster.polls(), delivered = cluster.fabric().counters().delivered;
  while (cpu_seconds() - began < seconds) {
    for (int r = 0; r < kRanks; ++r) {
      const auto i = static_cast<std::size_t>(r);
      tickets[r].reset();
      cluster.all_reduce(r, in[i].data(), out[i].data(), shape.count, shape.type, shape.redop, &tickets[r]);
    }
    const bool ended = cluster.run_until(
        [&] {
          for (const OpTicket& t : tickets) {
            if (!t.done()) return false;
          }
          return true;
        },
        10_s);
    if (!ended) return std::puts("an all-reduce did not end"), 1;
    for (int r = 0; r < kRanks; ++r)
      wrong += tickets[r].code != CANARY_OK || out[static_cast<std::size_t>(r)] != expected;
    checksum = crc32c(checksum, out[0].data(), out[0].size());
    ++done;
  }
  const double used = cpu_seconds() - began;
  const double rate = static_cast<double>(done) / used;
  const auto per = [&](std::uint64_t n) { return static_cast<double>(n) / static_cast<double>(done); };
  std::printf(
      "%.0f all-reduces per second and core, %lu wrong, %.0f engine polls and %.0f frames each, checksum %08x\n", rate,
      static_cast<unsigned long>(wrong), per(cluster.polls() - polls),
      per(cluster.fabric().counters().delivered - delivered), checksum);
  return wrong != 0 || rate < minimum ? 1 : 0;
}
