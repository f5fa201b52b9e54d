#include "tools/perf/options.h"

#include <array>
#include <charconv>
#include <CLI/CLI.hpp>
#include <utility>

namespace canarynet::perf {
namespace {

using tools::number;
using tools::wrong;

constexpr std::uint64_t kBytesLimit = std::uint64_t{1} << 40;

template <typename T>
using Names = std::vector<std::pair<std::string_view, T>>;

// The first name of a value is the one that is printed; the others are nccl-tests'.
const Names<canary_type> kTypes = {
    {"f32", CANARY_F32},       {"f64", CANARY_F64},    {"f16", CANARY_F16},   {"bf16", CANARY_BF16},
    {"i8", CANARY_I8},         {"u8", CANARY_U8},      {"i32", CANARY_I32},   {"i64", CANARY_I64},
    {"float", CANARY_F32},     {"double", CANARY_F64}, {"half", CANARY_F16},  {"int8", CANARY_I8},
    {"bfloat16", CANARY_BF16}, {"uint8", CANARY_U8},   {"int32", CANARY_I32}, {"int64", CANARY_I64}};
const Names<canary_redop> kRedops = {
    {"sum", CANARY_SUM}, {"avg", CANARY_AVG}, {"min", CANARY_MIN}, {"max", CANARY_MAX}, {"prod", CANARY_PROD}};
const Names<Order> kOrders = {{"blocks", Order::kBlocks}, {"sweep", Order::kSweep}, {"random", Order::kRandom}};
const Names<Op> kOps = {{"all_reduce", Op::kAllReduce},   {"reduce_scatter", Op::kReduceScatter},
                        {"all_gather", Op::kAllGather},   {"broadcast", Op::kBroadcast},
                        {"barrier", Op::kBarrier},        {"reduce", Op::kReduce},
                        {"gather", Op::kGather},          {"scatter", Op::kScatter},
                        {"all_to_all", Op::kAllToAll},    {"all_gather_v", Op::kAllGatherV},
                        {"all_to_all_v", Op::kAllToAllV}, {"sendrecv", Op::kSendRecv}};

template <typename T>
std::string_view first_name(const Names<T>& names, T value) {
  for (const auto& [name, v] : names) {
    if (v == value) return name;
  }
  return "?";
}

template <typename T>
bool find(const Names<T>& names, std::string_view text, T* value) {
  for (const auto& [name, v] : names) {
    if (name == text) return *value = v, true;
  }
  return false;
}

template <typename T>
std::string list(const Names<T>& names, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + std::string(names[i].first);
  return text;
}

double seconds(std::string_view option, std::string_view text) {
  if (!text.empty() && text.back() == 's') text.remove_suffix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc() || end != text.data() + text.size() || !(value > 0) || value > 86400) {
    wrong(option, text, "seconds, above 0 and at most 86400, such as 10 or 2.5");
  }
  return value;
}

std::uint64_t size(std::string_view option, std::string_view text) {
  std::uint64_t bytes = 0;
  if (!parse_size(text, &bytes)) wrong(option, text, "a size such as 4K, 1M or 64MiB (powers of 1024), at most 1024G");
  return bytes;
}

struct Texts {
  std::string op, min, max, factor, iterations, warmup, type, redop, root, async, duration, threads, order, seed;
};

void fill(const Texts& t, PerfOptions* o) {
  if (t.op == "all") {
    for (const auto& [name, op] : kOps) o->ops.push_back(op);
  } else if (Op op; find(kOps, t.op == "alltoall" ? "all_to_all" : t.op, &op)) {  // as nccl-tests spells it
    o->ops = {op};
  } else {
    wrong("OP", t.op, list(kOps, kOps.size()) + " or all");
  }
  if (o->in_place && t.op == "all") std::erase_if(o->ops, is_pairwise);
  if (o->in_place && is_pairwise(o->ops[0]))
    wrong("--in-place", t.op, "any other operation: these buffers must not overlap");
  o->bytes_min = t.min.empty() ? 4096 : size("-b", t.min);
  o->bytes_max = !t.max.empty() ? size("-e", t.max) : !t.min.empty() ? o->bytes_min : std::uint64_t{16} << 20;
  if (o->bytes_min > o->bytes_max) wrong("-b", t.min.empty() ? "4K" : t.min, "a size not above -e " + t.max);
  if (!t.factor.empty()) o->factor = number<std::uint64_t>("-f", t.factor, 2, 1 << 20);
  if (!t.iterations.empty()) o->iterations = number("-n", t.iterations, 1, 100'000'000);
  if (!t.warmup.empty()) o->warmup = number("-w", t.warmup, 0, 1'000'000);
  if (!t.type.empty() && !find(kTypes, t.type, &o->type)) wrong("-d", t.type, list(kTypes, 8));
  if (!t.redop.empty() && !find(kRedops, t.redop, &o->redop)) wrong("-o", t.redop, list(kRedops, kRedops.size()));
  if (!t.root.empty()) o->root = number("--root", t.root, 0, 1 << 20);
  if (!t.async.empty()) o->in_flight = number("--async", t.async, 1, 1024);
  if (!t.threads.empty()) o->threads = number("-t", t.threads, 1, 1024);
  if (!t.duration.empty()) o->duration_s = seconds("--duration", t.duration);
  if (!t.order.empty() && !find(kOrders, t.order, &o->order)) wrong("--order", t.order, list(kOrders, kOrders.size()));
  if (!t.seed.empty()) o->seed = number<std::uint64_t>("--seed", t.seed, 0, ~std::uint64_t{0});
  if (o->order != Order::kBlocks && o->in_flight > 1)
    wrong("--async", t.async, "1 with --order " + t.order + ": a size's time is that of operations one at a time");
  if (o->order != Order::kBlocks && o->duration_s > 0)
    wrong("--duration", t.duration, "no --order " + t.order + ": it takes -n, the operations of each size");
  for (const auto& setting : o->settings) {
    if (setting.find('=') == std::string::npos) wrong("--set", setting, "name=value, a setting of the library");
  }
}

constexpr const char* kFooter = R"(
Start it on every rank, with the same arguments:  canary-run -n 4 -- canary-perf all_reduce -b 4K -e 64M
With -t K every process is K ranks: canary-run -n 2 -- canary-perf all_reduce -t 8 has 16, process p those from p x K
on.
Only rank 0 prints. Sizes, algbw and busbw are those of nccl-tests (busbw = algbw x 2(n-1)/n for all_reduce).
  time   blocking: the median over rank 0's operations; --async: elapsed / operations (they overlap)
  p50/p99  over rank 0's operations, each from its call to its completion
         with a root: those of the rank where they are largest, since who sends is done when its bytes have left
  cpu s/GB CPU seconds of all ranks (user + system, all threads, timed loop) per 1e9 bytes of buffer and operation
  --order sweep, random: sizes take turns, -n operations of each; a row's time is that of its size's operations, the
         counters of the NICs are told once for all, cpu s/GB is that of all
  all_gather_v, all_to_all_v: short and long blocks take turns (half of the mean, and one and a half of it)
  sendrecv: every rank sends its buffer to the next one and receives that of the one before (--in-place: as without)
  #wrong elements that differ from the exact result, all ranks; what is to come out equal everywhere is also compared
         bit by bit between the ranks by its hash
A row fails when a device's kernel counter moved by less than 0.9 x what Canary says it sent there, or when less than
the buffers' size was sent in all.
Exit status: 0 all right; 1 wrong results, bytes that did not cross a NIC, or a failure of the library; 2 wrong
arguments.)";

}  // namespace

bool parse_size(std::string_view text, std::uint64_t* bytes) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return false;
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  unsigned shift = 0;
  for (const auto& [suffix, s] : Names<unsigned>{
           {"", 0}, {"B", 0}, {"K", 10}, {"KiB", 10}, {"M", 20}, {"MiB", 20}, {"G", 30}, {"GiB", 30}, {"?", 64}}) {
    shift = s;
    if (unit == suffix) break;
  }
  if (shift == 64 || value > (kBytesLimit >> shift)) return false;
  *bytes = value << shift;
  return true;
}

ParsedOptions parse_perf_options(const std::vector<std::string>& arguments) {
  ParsedOptions parsed;
  PerfOptions& o = parsed.options;
  Texts t;
  bool no_check = false, check = false, check_every = false, blocking = false;

  CLI::App app{"Measures and checks collectives of Canary.", "canary-perf"};
  app.footer(kFooter);
  app.add_option("OP", t.op, list(kOps, kOps.size()) + " or all")->required();
  app.add_option("-b,--minbytes", t.min, "smallest buffer [4K]");
  app.add_option("-e,--maxbytes", t.max, "largest buffer [-b where given, else 16M]");
  app.add_option("-f,--stepfactor", t.factor, "factor between sizes [4]");
  app.add_option("-n,--iters", t.iterations, "timed operations per size [20]");
  app.add_option("-w,--warmup_iters", t.warmup, "operations before them [5]");
  app.add_option(
      "--order", t.order,
      "blocks: one size after the other; sweep: one operation of each size, up and down; random: drawn [blocks]");
  app.add_option("--seed", t.seed, "of --order random, the same on all ranks [1]");
  app.add_option("-t,--nthreads", t.threads, "ranks per process: a thread each, which share one engine [1]");
  app.add_option("-d,--datatype", t.type, list(kTypes, 8) + " [f32]");
  app.add_option("-o,--redop", t.redop, list(kRedops, kRedops.size()) + " [sum]");
  app.add_option("--root", t.root, "root of broadcast, reduce, gather and scatter [0]");
  app.add_option("--algo", o.algo, "force an algorithm (CANARY_ALGO)");
  app.add_option("--set", o.settings, "name=value: a setting of the library; may be repeated")->expected(1)->take_all();
  app.add_flag("--json{-}", o.json_path, "results as JSON instead of the table; --json=FILE: beside it");
  auto* every = app.add_flag("--check-every", check_every,
                             "check after every operation; outputs are overwritten in between (times exclude both)");
  auto* ends = app.add_flag("--check", check, "check the warm-up operations and the last of each slot [default]");
  app.add_flag("--no-check", no_check, "check nothing")->excludes(every)->excludes(ends);
  app.add_flag("--in-place", o.in_place, "input and output share a buffer, refilled before each operation");
  app.add_flag("--arena", o.arena,
               "buffers from canary_mem_alloc: ranks of one host are sent references into them instead of copies");
  auto* async = app.add_option("--async", t.async, "operations kept in flight");
  app.add_flag("--blocking", blocking, "one at a time [default]")->excludes(async);
  app.add_option("--duration", t.duration, "back to back for so many seconds per size, instead of -n");
  app.add_option("--series", o.series_path,
                 "write rank 0's bytes per NIC in bins of 10 ms as CSV; every rank's where FILE contains %r");
  const auto take = [&] {
    if (check_every) o.check = Check::kEvery;
    if (no_check) o.check = Check::kNone;
    fill(t, &o);
  };
  tools::parse(app, arguments, take, &parsed);
  return parsed;
}

std::vector<std::uint64_t> sizes_of(const PerfOptions& options) {
  std::vector<std::uint64_t> sizes;
  for (auto bytes = options.bytes_min; bytes <= options.bytes_max; bytes *= options.factor) {
    sizes.push_back(bytes);
    if (bytes == 0) break;
  }
  return sizes;
}

std::string_view name_of(Op op) { return first_name(kOps, op); }
std::string_view name_of(canary_type type) { return first_name(kTypes, type); }
std::string_view name_of(canary_redop redop) { return first_name(kRedops, redop); }
bool reduces(Op op) { return op == Op::kAllReduce || op == Op::kReduceScatter || op == Op::kReduce; }
bool has_root(Op op) { return op == Op::kBroadcast || op == Op::kReduce || op == Op::kGather || op == Op::kScatter; }
bool is_pairwise(Op op) { return op == Op::kAllToAll || op == Op::kAllToAllV; }
bool in_blocks(Op op) {
  return op == Op::kReduceScatter || op == Op::kAllGather || op == Op::kGather || op == Op::kScatter ||
         op == Op::kAllGatherV || is_pairwise(op);
}

std::size_t element_bytes(canary_type type) {
  switch (type) {
    case CANARY_F64:
    case CANARY_I64:
      return 8;
    case CANARY_F32:
    case CANARY_I32:
      return 4;
    case CANARY_F16:
    case CANARY_BF16:
      return 2;
    case CANARY_I8:
    case CANARY_U8:
      return 1;
  }
  return 0;
}

}  // namespace canarynet::perf
