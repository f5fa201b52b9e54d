#include "tools/perf/measure.h"

#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <thread>
#include <tuple>
#include <utility>

#include "tools/perf/data.h"
#include "tools/perf/order.h"
#include "tools/perf/series.h"
#include "tools/perf/statistics.h"

namespace canarynet::perf {
namespace {

constexpr int kPatterns = 2;
constexpr double kKernelShare = 0.9;
constexpr std::uint64_t kKernelSlack = 4096;
constexpr double kSettleS = 1;

double seconds_of(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}
double now_s() { return seconds_of(CLOCK_MONOTONIC); }

double process_cpu_s() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto s = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6; };
  return s(usage.ru_utime) + s(usage.ru_stime);
}

// The buffers of one operation at one size. Ordinary ones are a block each; those in the library's memory share one,
// since only few blocks of it should be made.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    if (context_ != nullptr) canary_mem_free(context_->handle(), block_.data());
  }
  static std::size_t pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
  // The total that will be taken from the library's memory, in whole pages for each buffer.
  void reserve(Context& context, std::size_t bytes) {
    block_ = context.allocate<std::byte>(bytes);
    context_ = &context;
  }
  std::span<std::byte> take(std::size_t bytes) {
    if (context_ == nullptr) return blocks_.emplace_back(bytes);
    const std::size_t at = std::exchange(taken_, taken_ + pages(bytes));
    return block_.subspan(at, bytes);
  }

 private:
  static constexpr std::size_t kPage = 4096;
  Context* context_ = nullptr;
  std::span<std::byte> block_;
  std::size_t taken_ = 0;
  std::vector<std::vector<std::byte>> blocks_;
};

// Inputs, outputs and expectations of one operation at one size.
class Work {
 public:
  Work(Context& context, const PerfOptions& options, Op op, std::uint64_t bytes)
      : group_(context.world().handle()),
        op_(op),
        options_(options),
        is_root_(context.rank() == options.root),
        rank_(static_cast<std::size_t>(context.rank())),
        ranks_(static_cast<std::size_t>(context.world_size())),
        element_(element_bytes(options.type)),
        in_place_(options.in_place && op != Op::kSendRecv) {
    count_ = op == Op::kBarrier ? 0 : bytes / element_ / (in_blocks(op) ? ranks_ : 1);
    if (op == Op::kBarrier) return;
    const auto redop = reduces(op) ? options.redop : CANARY_MAX;
    const int n = context.world_size();
    for (std::size_t i = 0; i < ranks_; ++i) {
      sends_.push_back(block(rank_, i));
      receives_.push_back(block(i, rank_));
    }
    const std::size_t in_bytes = in_place_ ? 0 : input_count() * element_;
    const std::size_t slot_bytes = std::max(output_count(), in_place_ ? input_count() : 0) * element_;
    const auto slots = static_cast<std::size_t>(options.in_flight);
    if (options.arena)
      memory_.reserve(context, kPatterns * Memory::pages(in_bytes) + slots * Memory::pages(slot_bytes));
    for (int pattern = 0; pattern < kPatterns; ++pattern) {
      auto& t = tables_[static_cast<std::size_t>(pattern)];
      t.input = input_table(options.type, redop, n, context.rank(), pattern);
      if (reduces(op)) t.expected.push_back(reduced_table(options.type, redop, n, pattern));
      if (op == Op::kBroadcast || op == Op::kScatter)
        t.expected.push_back(input_table(options.type, redop, n, options.root, pattern));
      if (op == Op::kSendRecv)
        t.expected.push_back(input_table(options.type, redop, n, (context.rank() + n - 1) % n, pattern));
      for (int rank = 0; gathers() && rank < n; ++rank) {
        t.expected.push_back(input_table(options.type, redop, n, rank, pattern));
      }
      if (!in_place_) {
        t.data = memory_.take(in_bytes);
        perf::fill(t.input, 0, t.data.data(), input_count());
      }
    }
    sent_.resize(slots);
    for (std::size_t i = 0; i < slots; ++i) slots_.push_back(memory_.take(slot_bytes));
  }

  std::uint64_t count() const { return count_; }
  std::uint64_t bytes() const { return count_ * (in_blocks(op_) ? ranks_ : 1) * element_; }
  bool same_everywhere() const {
    return op_ == Op::kAllReduce || op_ == Op::kAllGather || op_ == Op::kAllGatherV || op_ == Op::kBroadcast;
  }
  bool checks() const { return op_ != Op::kBarrier && options_.check != Check::kNone; }

  void prepare(std::size_t slot, int pattern) {
    if (op_ == Op::kBarrier) return;
    if (in_place_) {
      perf::fill(tables_[static_cast<std::size_t>(pattern)].input, 0, in_place_input(slot), input_count());
    } else if (options_.check == Check::kEvery) {
      std::fill(slots_[slot].begin(), slots_[slot].end(), std::byte{0xa5});
    }
  }
  // With a null handle it blocks.
  void start(std::size_t slot, int pattern, canary_op** handle) {
    if (op_ == Op::kBarrier) return canarynet::check(canary_barrier(group_, handle));
    std::byte* out = slots_[slot].data();
    const std::byte* in = in_place_ ? in_place_input(slot) : tables_[static_cast<std::size_t>(pattern)].data.data();
    if (in_place_) out += output_shift();
    const auto type = options_.type;
    const int root = options_.root;
    switch (op_) {
      case Op::kAllReduce:
        return canarynet::check(canary_all_reduce(group_, in, out, count_, type, options_.redop, handle));
      case Op::kReduceScatter:
        return canarynet::check(canary_reduce_scatter(group_, in, out, count_, type, options_.redop, handle));
      case Op::kAllGather:
        return canarynet::check(canary_all_gather(group_, in, out, count_, type, handle));
      case Op::kBroadcast:
        return canarynet::check(canary_broadcast(group_, in, out, count_, type, root, handle));
      case Op::kReduce:
        return canarynet::check(canary_reduce(group_, in, out, count_, type, options_.redop, root, handle));
      case Op::kGather:
        return canarynet::check(canary_gather(group_, in, out, count_, type, root, handle));
      case Op::kScatter:
        return canarynet::check(canary_scatter(group_, in, out, count_, type, root, handle));
      case Op::kAllToAll:
        return canarynet::check(canary_all_to_all(group_, in, out, count_, type, handle));
      case Op::kAllGatherV:
        return canarynet::check(canary_all_gather_v(group_, in, out, receives_.data(), type, handle));
      case Op::kAllToAllV:
        return canarynet::check(
            canary_all_to_all_v(group_, in, sends_.data(), nullptr, out, receives_.data(), nullptr, type, handle));
      case Op::kSendRecv: {
        canary_op *receive = nullptr, *send = nullptr;
        const auto to = static_cast<int>((rank_ + 1) % ranks_), from = static_cast<int>((rank_ + ranks_ - 1) % ranks_);
        canarynet::check(canary_recv(group_, out, count_, type, from, &receive));
        Operation received(receive);
        canarynet::check(canary_send(group_, in, count_, type, to, &send));
        sent_[slot] = Operation(send);
        if (handle != nullptr) return void(*handle = received.release());
        received.wait();
        return finish(slot);
      }
      case Op::kBarrier:
        return;
    }
  }
  // Finishes whatever belongs to the slot's operation beside its handle.
  void finish(std::size_t slot) {
    if (op_ == Op::kSendRecv) sent_[slot].wait();
  }
  // Compares the slot's output with the exact result.
  void verify(std::size_t slot, int pattern) {
    if (!checks()) return;
    const auto& expected = tables_[static_cast<std::size_t>(pattern)].expected;
    const std::byte* out = slots_[slot].data();
    ++checked;
    if (in_place_) out += output_shift();
    if (op_ == Op::kReduceScatter || op_ == Op::kScatter) {
      wrong += static_cast<std::int64_t>(count_wrong(expected[0], rank_ * count_, out, count_));
      return;
    }
    if (output_count() == 0) return;
    if (!gathers()) {
      wrong += static_cast<std::int64_t>(count_wrong(expected[0], 0, out, count_));
    }
    for (std::size_t source = 0, at = 0; gathers() && source < ranks_; at += receives_[source++]) {
      std::size_t first = 0;  // of the block in its source's input
      for (std::size_t target = 0; is_pairwise(op_) && target < rank_; ++target) first += block(source, target);
      wrong += static_cast<std::int64_t>(count_wrong(expected[source], first, out + at * element_, receives_[source]));
    }
    hash = hash * 0x9e3779b97f4a7c15ull + hash_of(out, output_count() * element_);
  }

  std::int64_t wrong = 0;
  std::uint64_t checked = 0;
  std::uint64_t hash = 0;  // of all checked outputs, in order

 private:
  struct Pattern {
    Table input;
    std::vector<Table> expected;  // one, or one per rank's block
    std::span<std::byte> data;    // the input; empty in place
  };
  // Whether the output has a block from every rank.
  bool gathers() const {
    return op_ == Op::kAllGather || op_ == Op::kGather || op_ == Op::kAllGatherV || is_pairwise(op_);
  }
  // The number of elements that `source` has for `target`. If blocks differ, short and long ones take turns (an odd
  // number of ranks leaves one of the mean), so that whole buffers are as long as with blocks of one length, and the
  // block that stays at its rank is not above the mean.
  std::size_t block(std::size_t source, std::size_t target) const {
    const bool differ = op_ == Op::kAllGatherV || op_ == Op::kAllToAllV;
    const std::size_t turn = op_ == Op::kAllGatherV ? source : source + target;
    const std::size_t last = op_ == Op::kAllGatherV ? source : std::max(source, target);
    if (!differ || (ranks_ % 2 == 1 && last == ranks_ - 1)) return count_;
    return turn % 2 == 0 ? count_ / 2 : 2 * count_ - count_ / 2;
  }
  // Elements in this rank's input, and in its output.
  std::size_t input_count() const {
    if (op_ == Op::kScatter) return is_root_ ? count_ * ranks_ : 0;
    if (op_ == Op::kAllGatherV) return sends_[rank_];
    return count_ * (op_ == Op::kReduceScatter || is_pairwise(op_) ? ranks_ : 1);
  }
  std::size_t output_count() const {
    if (op_ == Op::kGather) return is_root_ ? count_ * ranks_ : 0;
    if (op_ == Op::kReduce && !is_root_) return 0;
    return count_ * (gathers() ? ranks_ : 1);
  }
  // In place the smaller buffer is the rank's own block of the larger one.
  std::byte* in_place_input(std::size_t slot) {
    const bool inside = output_count() > input_count() && input_count() != 0;
    std::size_t before = 0;
    for (std::size_t i = 0; inside && i < rank_; ++i) before += receives_[i];
    return slots_[slot].data() + before * element_;
  }
  std::size_t output_shift() const {
    const bool inside = input_count() > output_count() && output_count() != 0;
    return inside ? rank_ * count_ * element_ : 0;
  }

  canary_group* group_;
  Op op_;
  const PerfOptions& options_;
  bool is_root_;
  std::size_t rank_, ranks_, element_;
  bool in_place_;
  std::size_t count_ = 0;
  std::vector<std::size_t> sends_, receives_;  // elements of this rank's blocks
  std::array<Pattern, kPatterns> tables_;
  Memory memory_;
  std::vector<std::span<std::byte>> slots_;
  std::vector<Operation> sent_;  // sendrecv: by slot
};

// Operations one after the other, or `in_flight` of them at a time; samples their times.
class Loop {
 public:
  Loop(Work& work, const PerfOptions& options, bool sample)
      : work_(work), options_(options), sample_(sample), flights_(static_cast<std::size_t>(options.in_flight)) {}

  void run(std::uint64_t operations) {
    for (std::uint64_t i = 0; i < operations; ++i) one();
  }
  // Waits for those in flight, and checks the last output of each slot.
  void drain() {
    const std::uint64_t n = flights_.size();
    for (std::uint64_t i = next_ < n ? 0 : next_ - n; i < next_; ++i) land(static_cast<std::size_t>(i % n));
    for (std::uint64_t i = next_ < n ? 0 : next_ - n; i < next_ && options_.check == Check::kEnds && !check_each; ++i) {
      work_.verify(static_cast<std::size_t>(i % n), pattern_of(i));
    }
  }
  std::uint64_t operations() const { return next_; }

  std::vector<double> samples_us;
  double busy_s = 0;     // inside blocking operations
  double own_cpu_s = 0;  // preparing and checking in between
  bool check_each = false;

 private:
  struct Flight {
    Operation operation;
    double started = 0;
    int pattern = 0;
    bool busy = false;
  };
  int pattern_of(std::uint64_t index) const { return static_cast<int>(index / flights_.size() % kPatterns); }

  void one() {
    const auto slot = static_cast<std::size_t>(next_ % flights_.size());
    Flight& flight = flights_[slot];
    land(slot);
    const double cpu = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    flight.pattern = pattern_of(next_);
    work_.prepare(slot, flight.pattern);
    own_cpu_s += seconds_of(CLOCK_THREAD_CPUTIME_ID) - cpu;
    flight.started = now_s();
    flight.busy = true;
    ++next_;
    if (flights_.size() == 1) {
      work_.start(slot, flight.pattern, nullptr);
      landed(slot);
    } else {
      canary_op* handle = nullptr;
      work_.start(slot, flight.pattern, &handle);
      flight.operation = Operation(handle);
    }
  }
  void land(std::size_t slot) {
    if (!flights_[slot].busy) return;
    flights_[slot].operation.wait();
    work_.finish(slot);
    landed(slot);
  }
  void landed(std::size_t slot) {
    Flight& flight = flights_[slot];
    const double took = now_s() - flight.started;
    flight.busy = false;
    busy_s += took;
    if (sample_) samples_us.push_back(took * 1e6);
    if (!check_each && options_.check != Check::kEvery) return;
    const double cpu = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    work_.verify(slot, flight.pattern);
    own_cpu_s += seconds_of(CLOCK_THREAD_CPUTIME_ID) - cpu;
  }

  Work& work_;
  const PerfOptions& options_;
  bool sample_;
  std::vector<Flight> flights_;
  std::uint64_t next_ = 0;
};

// Runs back to back until rank 0's clock says enough: it decides one batch ahead, so that no rank pauses for the news.
void run_for(Context& context, double duration_s, std::int64_t batch, Loop& loop) {
  const double start = now_s();
  double batch_s = 0;
  for (std::int64_t more = 1; more != 0;) {
    const double batch_start = now_s();
    more = batch_start - start + batch_s < duration_s ? 1 : 0;
    auto decision = context.world().broadcast_async(std::span(&more, 1), 0);
    loop.run(static_cast<std::uint64_t>(batch));
    decision.wait();
    batch_s = now_s() - batch_start;
  }
}

// Operations per batch of a timed run: about a tenth of a second of them, as rank 0 has measured.
std::int64_t batch_size(Context& context, Work& work, const PerfOptions& options) {
  Loop trial(work, options, false);
  const double start = now_s();
  trial.run(3);
  trial.drain();
  const double each = (now_s() - start) / 3;
  auto batch = static_cast<std::int64_t>(std::clamp(0.1 / std::max(each, 1e-9), 1.0, 1000.0));
  context.world().broadcast(std::span(&batch, 1), 0);
  return batch;
}

constexpr std::size_t kMaxNics = 17;  // and shared memory
struct NicRecord {
  char device[32];
  std::uint64_t tx, rx, kernel_tx, retransmits, failovers, rate;
  std::uint32_t lanes_up, used;
};

std::vector<NicRecord> nic_deltas(const std::vector<canary_nic_stats>& before,
                                  const std::vector<canary_nic_stats>& after) {
  std::vector<NicRecord> records(kMaxNics);
  for (std::size_t i = 0; i < std::min({kMaxNics, before.size(), after.size()}); ++i) {
    const auto &a = after[i], &b = before[i];
    auto& r = records[i];
    std::memcpy(r.device, a.device, sizeof r.device);
    r.device[sizeof r.device - 1] = 0;
    r.tx = a.transmit_bytes - b.transmit_bytes;
    r.rx = a.receive_bytes - b.receive_bytes;
    r.kernel_tx = a.kernel_transmit_bytes - b.kernel_transmit_bytes;
    r.retransmits = a.piece_retransmits - b.piece_retransmits;
    r.failovers = a.failovers - b.failovers;
    r.rate = a.rate_bytes_per_second;
    r.lanes_up = a.lanes_up;
    r.used = 1;
  }
  return records;
}

// Returns the NICs once the kernel has sent what Canary gave it, or after a second: a slow NIC may still hold copies of
// pieces that have arrived over others.
std::vector<canary_nic_stats> settled_nics(Context& context, const std::vector<canary_nic_stats>& before) {
  const double end = now_s() + kSettleS;
  for (;;) {
    auto after = context.nics();
    bool settled = true;
    for (std::size_t i = 0; i < std::min(before.size(), after.size()); ++i) {
      NicRow row;
      row.device = after[i].device;
      row.tx_bytes = after[i].transmit_bytes - before[i].transmit_bytes;
      row.kernel_tx_bytes = after[i].kernel_transmit_bytes - before[i].kernel_transmit_bytes;
      settled = settled && judge_nic(row).empty();
    }
    if (settled || now_s() > end) return after;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

std::vector<NicRow> gather_nics(Context& context, const std::vector<NicRecord>& own) {
  const auto bytes = own.size() * sizeof(NicRecord);
  std::vector<NicRecord> all(own.size() * static_cast<std::size_t>(context.world_size()));
  context.world().all_gather(std::span(reinterpret_cast<const std::uint8_t*>(own.data()), bytes),
                             std::span(reinterpret_cast<std::uint8_t*>(all.data()), all.size() * sizeof(NicRecord)));
  std::vector<NicRow> rows;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& r = all[i];
    if (r.used == 0) continue;
    rows.push_back({static_cast<int>(i / own.size()), r.device, r.tx, r.rx, r.kernel_tx, r.retransmits, r.failovers,
                    r.rate, r.lanes_up});
  }
  return rows;
}

// Checks that the row's NICs sent what its operations need, and that the kernel saw it.
void check_traffic(const Context& context, std::uint64_t least, Row* row) {
  std::uint64_t sent = 0;
  for (const auto& nic : row->nics) sent += nic.tx_bytes;
  if (static_cast<double>(sent) < kKernelShare * static_cast<double>(least)) {
    row->faults.push_back("all NICs together sent " + std::to_string(sent) + " bytes where these operations need " +
                          std::to_string(least) + ": the bytes went another way");
  }
  for (const auto& nic : row->nics) {
    if (nic.rank != context.rank()) continue;
    if (auto fault = judge_nic(nic); !fault.empty()) row->faults.push_back(fault);
  }
}

// The least that the row's operations must send. Bytes between ranks of one process cross no NIC.
std::uint64_t least_of(const Context& context, const PerfOptions& options, const Row& row) {
  return least_traffic(row.op, row.bytes, context.world_size() / options.threads) * row.iterations;
}

// Sums, minimum and maximum over the ranks turn all their parts into one verdict. The row's NICs must have sent `least`
// bytes.
void agree(Context& context, const Work& work, double cpu_s, std::uint64_t least, Row* row) {
  Group& world = context.world();
  row->wrong = work.wrong;
  world.all_reduce(std::span(&row->wrong, 1), CANARY_SUM);
  world.all_reduce(std::span(&cpu_s, 1), CANARY_SUM);
  const auto bytes = static_cast<double>(row->bytes) * static_cast<double>(row->iterations);
  row->cpu_s_per_gb = bytes > 0 ? cpu_s / (bytes * 1e-9) : 0;

  if (work.checks() && work.same_everywhere()) {
    std::int64_t low = static_cast<std::int64_t>(work.hash), high = low;
    world.all_reduce(std::span(&low, 1), CANARY_MIN);
    world.all_reduce(std::span(&high, 1), CANARY_MAX);
    if (low != high) row->faults.push_back("results are not bit-identical on all ranks");
  }
  check_traffic(context, least, row);
  if (work.wrong != 0) row->faults.push_back(std::to_string(work.wrong) + " wrong elements in this rank's results");
  std::int64_t faults = static_cast<std::int64_t>(row->faults.size());
  world.all_reduce(std::span(&faults, 1), CANARY_SUM);
  row->failed = faults != 0;
}

// Makes the whole row, except what several ranks judge.
Row timed_row(Context& context, const PerfOptions& options, Op op, const Work& work, Loop& loop, double elapsed) {
  Row row;
  row.op = op;
  row.bytes = work.bytes();
  row.count = work.count();
  row.algorithm = op == Op::kSendRecv ? "direct" : context.world().algorithm();
  if (op != Op::kSendRecv) row.why = context.world().explain(std::string(name_of(op)).c_str(), row.bytes);
  row.iterations = loop.operations();
  const bool blocking = options.in_flight == 1;
  const auto operations = static_cast<double>(std::max<std::uint64_t>(row.iterations, 1));
  row.mean_us = (blocking ? loop.busy_s : elapsed) / operations * 1e6;
  row.p50_us = median(loop.samples_us);
  row.p99_us = percentile(loop.samples_us, 0.99);
  row.max_us = percentile(loop.samples_us, 1);
  if (has_root(op)) {
    // A sender is done when its bytes have left; the last rank to have them counts.
    double figures[] = {row.mean_us, row.p50_us, row.p99_us, row.max_us};
    context.world().all_reduce(std::span(figures), CANARY_MAX);
    std::tie(row.mean_us, row.p50_us, row.p99_us, row.max_us) =
        std::tie(figures[0], figures[1], figures[2], figures[3]);
  }
  row.time_us = blocking ? row.p50_us : row.mean_us;
  if (row.time_us > 0) row.algbw = static_cast<double>(row.bytes) / (row.time_us * 1e-6) * 1e-9;
  row.busbw = row.algbw * bus_factor(op, context.world_size());
  row.checked = work.checked;
  return row;
}

}  // namespace

std::string judge_nic(const NicRow& nic) {
  // Addresses of the loopback network count as NICs of their own here (lo:0), but the kernel counts only lo; it does
  // not count shared memory at all.
  if (nic.device == "lo" || nic.device.starts_with("lo:") || nic.device == "shm") return {};
  if (static_cast<double>(nic.kernel_tx_bytes + kKernelSlack) >= kKernelShare * static_cast<double>(nic.tx_bytes))
    return {};
  return nic.device + ": Canary counted " + std::to_string(nic.tx_bytes) + " bytes sent, the kernel only " +
         std::to_string(nic.kernel_tx_bytes) + ": they did not cross this NIC";
}

Row measure(Context& context, const PerfOptions& options, Op op, std::uint64_t bytes, Series* series) {
  Work work(context, options, op, bytes);
  {
    Loop warmup(work, options, false);
    warmup.check_each = options.check != Check::kNone;
    warmup.run(static_cast<std::uint64_t>(options.warmup));
    warmup.drain();
  }
  const auto batch = options.duration_s > 0 ? batch_size(context, work, options) : 0;

  Loop loop(work, options, true);
  if (options.duration_s <= 0) loop.samples_us.reserve(static_cast<std::size_t>(options.iterations));
  context.world().barrier();
  const auto before = context.nics();
  const double cpu = process_cpu_s();
  // NICs and processor time are the process's: its other ranks must not have begun before, nor go on after.
  if (options.threads > 1) context.world().barrier();
  if (series != nullptr) series->start(context, std::string(name_of(op)), work.bytes());
  const double start = now_s();
  if (options.duration_s > 0) {
    run_for(context, options.duration_s, batch, loop);
  } else {
    loop.run(static_cast<std::uint64_t>(options.iterations));
  }
  loop.drain();
  const double elapsed = now_s() - start;
  if (series != nullptr) series->stop();
  if (options.threads > 1) context.world().barrier();
  // The first rank of a process reports its processor time and its NICs' counters, once.
  const bool first = context.rank() % options.threads == 0;
  const double cpu_s = (first ? process_cpu_s() - cpu : 0) - loop.own_cpu_s;
  const auto after = settled_nics(context, before);

  Row row = timed_row(context, options, op, work, loop, elapsed);
  row.nics = gather_nics(context, first ? nic_deltas(before, after) : std::vector<NicRecord>(kMaxNics));
  agree(context, work, cpu_s, least_of(context, options, row), &row);
  return row;
}

std::vector<Row> measure_mixed(Context& context, const PerfOptions& options, Op op, Series* series) {
  struct Size {
    Size(Context& c, const PerfOptions& o, Op op, std::uint64_t bytes) : work(c, o, op, bytes), loop(work, o, true) {}
    Work work;
    Loop loop;
    std::string algorithm;
  };
  std::vector<std::unique_ptr<Size>> sizes;
  std::uint64_t largest = 0;
  for (const auto bytes : sizes_of(options)) {
    sizes.push_back(std::make_unique<Size>(context, options, op, bytes));
    largest = std::max(largest, sizes.back()->work.bytes());
    Loop warmup(sizes.back()->work, options, false);
    warmup.check_each = options.check != Check::kNone;
    warmup.run(static_cast<std::uint64_t>(options.warmup));
    warmup.drain();
  }
  const auto turns = turns_of(options.order, sizes.size(), options.iterations, options.seed);
  context.world().barrier();
  const auto before = context.nics();
  double cpu_s = process_cpu_s();
  if (options.threads > 1) context.world().barrier();
  if (series != nullptr) series->start(context, std::string(name_of(op)), largest);
  const double start = now_s();
  for (const std::size_t turn : turns) {
    Size& size = *sizes[turn];
    size.loop.run(1);
    if (size.algorithm.empty()) size.algorithm = context.world().algorithm();
  }
  for (const auto& size : sizes) size->loop.drain();
  const double elapsed = now_s() - start;
  if (series != nullptr) series->stop();
  if (options.threads > 1) context.world().barrier();
  const bool first = context.rank() % options.threads == 0;
  cpu_s = first ? process_cpu_s() - cpu_s : 0;
  const auto after = settled_nics(context, before);

  // NICs and processor time serve all sizes together: the last row reports the counters, and each size has a share of
  // the time by its bytes.
  std::vector<Row> rows;
  std::uint64_t least = 0;
  double all_bytes = 0;
  for (const auto& size : sizes) {
    rows.push_back(timed_row(context, options, op, size->work, size->loop, elapsed));
    rows.back().algorithm = size->algorithm;
    least += least_of(context, options, rows.back());
    all_bytes += static_cast<double>(rows.back().bytes) * static_cast<double>(rows.back().iterations);
    cpu_s -= size->loop.own_cpu_s;
  }
  rows.back().nics = gather_nics(context, first ? nic_deltas(before, after) : std::vector<NicRecord>(kMaxNics));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double bytes = static_cast<double>(rows[i].bytes) * static_cast<double>(rows[i].iterations);
    const double share = all_bytes > 0 ? bytes / all_bytes : 0;
    agree(context, sizes[i]->work, cpu_s * share, i + 1 == rows.size() ? least : 0, &rows[i]);
  }
  return rows;
}

}  // namespace canarynet::perf
