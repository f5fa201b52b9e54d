// sim/sim_rate_bench.cc -- how many all-reduces a second the simulator runs: 8 ranks, 2 rails, 64 pieces of 1 KiB sent
// per rank, real CRC and reduction, faults on (loss, duplicates, reordering, corruption). Prints the rate per core and
// a checksum of the results.
//
// It runs twice: with engines whose poll takes 5 us (about the cost of a real one's system calls; frames that arrive
// meanwhile are handled together), and with infinitely fast ones.
//
//   canary-sim-rate [SECONDS] [MIN_PER_SECOND]     exits 1 on a wrong result, and below the minimum (judged with 5 us)
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iterator>
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

struct Rate {
  std::uint64_t done = 0, wrong = 0, polls = 0, frames = 0;
  double cpu_s = 0;
  std::uint32_t checksum = 0;
  bool ended = false;
};

Rate run(Nanos poll_time, double seconds) {
  constexpr int kRanks = 8;
  ClusterOptions o;
  o.hosts = kRanks;
  o.poll_time = poll_time;
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
  Rate rate;
  if (!cluster.join()) return std::puts("the cluster did not join"), rate;
  // A ring sends 2 (n - 1) / n of the buffer: 64 pieces of 1 KiB per rank are a buffer of 64 * 8 / 14 KiB, rounded up
  // to whole pieces.
  oracle::Shape shape;
  shape.ranks = kRanks;
  shape.count = 40 * 1024 / 4;
  std::vector<std::vector<std::byte>> in(kRanks), out(kRanks);
  std::vector<std::byte> expected(oracle::output_bytes(shape, 0));
  for (int r = 0; r < kRanks; ++r) {
    in[static_cast<std::size_t>(r)].resize(oracle::input_bytes(shape, 0));
    out[static_cast<std::size_t>(r)].resize(oracle::output_bytes(shape, 0));
    oracle::fill_input(shape, r, in[static_cast<std::size_t>(r)].data());
  }
  oracle::expected_output(shape, 0, expected.data());
  OpTicket tickets[kRanks];
  const double began = cpu_seconds();
  const std::uint64_t polls = cluster.polls(), delivered = cluster.fabric().counters().delivered;
  while (cpu_seconds() - began < seconds) {
    for (int r = 0; r < kRanks; ++r) {
      const auto i = static_cast<std::size_t>(r);
      tickets[r].reset();
      cluster.all_reduce(r, in[i].data(), out[i].data(), shape.count, shape.type, shape.redop, &tickets[r]);
    }
    const auto done = [&] {
      return std::all_of(std::begin(tickets), std::end(tickets), [](const OpTicket& t) { return t.done(); });
    };
    if (!cluster.run_until(done, 10_s)) return std::puts("an all-reduce did not end"), rate;
    for (int r = 0; r < kRanks; ++r) {
      rate.wrong += tickets[r].code != CANARY_OK ||
                    std::memcmp(out[static_cast<std::size_t>(r)].data(), expected.data(), expected.size()) != 0;
    }
    rate.checksum = crc32c(rate.checksum, out[0].data(), out[0].size());
    ++rate.done;
  }
  rate.cpu_s = cpu_seconds() - began;
  rate.polls = cluster.polls() - polls;
  rate.frames = cluster.fabric().counters().delivered - delivered;
  rate.ended = true;
  return rate;
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 3.0;
  const double minimum = argc > 2 ? std::atof(argv[2]) : 0.0;
  bool good = true;
  for (const Nanos poll_time : {5_us, 0_us}) {
    const Rate r = run(poll_time, seconds);
    const auto per = [&](std::uint64_t n) { return static_cast<double>(n) / static_cast<double>(r.done); };
    const double rate = static_cast<double>(r.done) / r.cpu_s;
    if (r.ended) {
      std::printf(
          "polls of %lld us: %.0f all-reduces per second and core, %lu wrong, %.0f engine polls and %.0f frames each, "
          "checksum %08x\n",
          static_cast<long long>(poll_time.count / 1000), rate, static_cast<unsigned long>(r.wrong), per(r.polls),
          per(r.frames), r.checksum);
    }
    good = good && r.ended && r.wrong == 0 && (poll_time == 0_us || rate >= minimum);
  }
  return good ? 0 : 1;
}
