// The modes for ordinary traffic: correctness, goodput, latency, and the symbols that a file exports.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "tests/nccl/modes.h"

namespace nccltest {
namespace {

constexpr Millis kBarrierLimit{60'000};

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Runs one communicator's whole life, on a thread of its own if there are several.
void whole_life(Net& net, const Options& options, int index, int generation, std::uint64_t* bytes,
                std::uint64_t* messages) {
  Communicator comm(net, options, index, generation);
  if (!comm.init() || !comm.connect().connected) return;
  comm.start(options.messages);
  // This measures no speed: it only ends a hang. The progress thread watches progress.
  const bool whole = comm.wait(600);
  comm.stop();
  *bytes += comm.received_bytes();
  *messages += comm.received_messages();
  // There is no barrier: a rank that has all of its messages closes, whatever the peers still have to receive.
  comm.close();
  comm.finalize();
  if (!whole) return;
  sleep_us(50'000);
  comm.check_untouched();
}

std::string numbers(const std::vector<double>& values) {
  std::string text;
  for (double value : values) {
    char number[32];
    std::snprintf(number, sizeof number, "%s%.9g", text.empty() ? "" : ", ", value);
    text += number;
  }
  return "[" + text + "]";
}

double percentile(std::vector<double>& sorted, double share) {
  if (sorted.empty()) return -1;
  return sorted[std::min(sorted.size() - 1, static_cast<std::size_t>(share * static_cast<double>(sorted.size())))];
}

}  // namespace

int correctness_mode(const Options& options) {
  std::uint64_t bytes = 0, messages = 0;
  int version = 0, generation = 0;
  for (int load_number = 0; load_number < options.reloads && failures() == 0; ++load_number) {
    const Loaded plugin = load(options);
    if (!plugin.net) break;
    version = plugin.net->version();
    std::vector<std::uint64_t> sums(static_cast<std::size_t>(options.contexts) * 2);
    std::vector<std::thread> threads;
    for (int c = 0; c < options.contexts; ++c) {
      auto* sum = &sums[static_cast<std::size_t>(c) * 2];
      threads.emplace_back([&, c, sum] { whole_life(*plugin.net, options, c, generation, sum, sum + 1); });
    }
    for (std::thread& thread : threads) thread.join();
    for (std::size_t i = 0; i < sums.size(); i += 2) {
      bytes += sums[i];
      messages += sums[i + 1];
    }
    ++generation;
  }
  if (messages == 0 && !(options.pattern == "forward" && options.rank != 1)) fail("no message was received");
  Json json;
  json.add("version", version).add("bytes", bytes).add("messages", messages);
  return finish_mode(options, json);
}

int goodput_mode(const Options& options) {
  const Loaded plugin = load(options);
  if (!plugin.net) return 1;
  Json json;
  {
    Communicator comm(*plugin.net, options, 0);
    if (!comm.init() || !comm.connect().connected) {
      finish_mode(options, json);
      return 1;
    }
    comm.start(~std::uint64_t{0});
    sleep_us(static_cast<long>(options.warmup * 1e6));
    if (!comm.bootstrap().barrier(kBarrierLimit)) fail("not all ranks came to the measurement");
    const std::uint64_t begin = now_ns();
    const double cpu = cpu_seconds(), progress_cpu = comm.progress_cpu_seconds();
    std::vector<std::uint64_t> at_begin;
    for (const auto& endpoint : comm.endpoints()) at_begin.push_back(endpoint->bytes());
    const std::uint64_t messages = comm.received_messages();
    const std::uint64_t end = begin + static_cast<std::uint64_t>(options.seconds * 1e9);
    // A rank that ends alone is followed by finish(), in which all ranks agree where to end.
    while (now_ns() < end && !comm.failed() &&
           (options.end_file.empty() || access(options.end_file.c_str(), F_OK) != 0)) {
      sleep_us(static_cast<long>(std::min<std::uint64_t>(20'000, (end - now_ns()) / 1000 + 1)));
    }
    const double seconds = seconds_between(begin, now_ns());
    const double cpu_used = cpu_seconds() - cpu, progress_cpu_used = comm.progress_cpu_seconds() - progress_cpu;
    std::uint64_t received = 0, sent = 0;
    std::vector<double> rates;
    for (std::size_t i = 0; i < at_begin.size(); ++i) {
      const Endpoint& endpoint = *comm.endpoints()[i];
      const std::uint64_t grown = endpoint.bytes() - at_begin[i];
      (endpoint.options().sends ? sent : received) += grown;
      if (!endpoint.options().sends) rates.push_back(static_cast<double>(grown) / seconds);
    }
    json.add("version", plugin.net->version()).add("plugin", plugin.net->name()).add("seconds", seconds);
    json.add("received_bytes", received).add("sent_bytes", sent).add("messages", comm.received_messages() - messages);
    json.add("bytes_per_second", static_cast<double>(received) / seconds).raw("connections", numbers(rates));
    json.add("cpu_seconds", cpu_used).add("progress_cpu_seconds", progress_cpu_used);
    if (comm.failed()) {
      comm.wait(0.1);
    } else {
      comm.finish(60);
    }
    comm.stop();
    std::string gaps;
    for (const auto& endpoint : comm.endpoints()) {
      for (const Gap& gap : endpoint->gaps()) {
        gaps += (gaps.empty() ? "" : ", ") +
                numbers({static_cast<double>(gap.begin_ns) / 1e9, static_cast<double>(gap.end_ns) / 1e9});
      }
    }
    json.raw("gaps", "[" + gaps + "]");
    json.add("checked", std::string(options.check == Check::kFull     ? "full"
                                    : options.check == Check::kSample ? "sample"
                                                                      : "none"));
    comm.close();
    comm.finalize();
  }
  return finish_mode(options, json);
}

int latency_mode(const Options& options) {
  Options own = options;
  own.channels = 1;
  own.pattern = "ring";
  if (own.check == Check::kFull) own.check = Check::kSample;
  const Loaded plugin = load(own);
  if (!plugin.net) return 1;
  Json json;
  if (own.ranks != 2) fail("latency is measured between 2 ranks");
  {
    Communicator comm(*plugin.net, own, 0);
    if (own.ranks == 2 && comm.init() && comm.connect().connected) {
      Endpoint *to = nullptr, *from = nullptr;
      for (const auto& endpoint : comm.endpoints()) (endpoint->options().sends ? to : from) = endpoint.get();
      from->set_limit(own.messages);
      to->set_limit(0);
      std::vector<double> times;
      const std::uint64_t warmup = std::min<std::uint64_t>(own.messages / 10, 200);
      comm.bootstrap().barrier(kBarrierLimit);
      bool moving = true;
      // One connection each way follows the progress thread's rules: it posts what may be posted, then tests the
      // oldest, then idles.
      const auto until = [&](const Endpoint& awaited, std::uint64_t count) {
        const std::uint64_t limit = now_ns() + static_cast<std::uint64_t>(own.stall_limit * 1e9);
        while (moving && awaited.consumed() < count) {
          const std::uint64_t now = now_ns();
          const bool moved = static_cast<int>(to->step(now, true)) | static_cast<int>(from->step(now, true));
          if (to->error() != kSuccess || from->error() != kSuccess || now > limit) {
            const Result result = to->error() != kSuccess ? to->error() : from->error();
            fail("message %llu: %s", static_cast<unsigned long long>(count),
                 result != kSuccess ? result_name(result) : "no progress");
            moving = false;
          }
          if (!moved) idle(own.idle_sleep_us);
        }
      };
      std::thread progress([&] {
        exact_sleeps();
        for (std::uint64_t i = 0; i < own.messages && moving; ++i) {
          // A shaped NIC's bucket fills again; otherwise its rate would be measured.
          if (own.pauses && own.rank == 0) sleep_us(2000);
          const std::uint64_t begin = now_ns();
          if (own.rank == 0) to->set_limit(i + 1);
          until(*from, i + 1);
          if (own.rank == 1) to->set_limit(i + 1);
          if (i >= warmup) times.push_back(seconds_between(begin, now_ns()) * 1e6);
        }
        until(*to, own.messages);
      });
      progress.join();
      comm.bootstrap().barrier(kBarrierLimit);
      std::sort(times.begin(), times.end());
      json.add("version", plugin.net->version()).add("plugin", plugin.net->name());
      json.add("round_trips", static_cast<std::uint64_t>(times.size()));
      json.add("round_trip_us_p50", percentile(times, 0.5)).add("round_trip_us_p99", percentile(times, 0.99));
      json.add("round_trip_us_min", percentile(times, 0));
      comm.close();
      comm.finalize();
    }
  }
  return finish_mode(options, json);
}

int list_mode(const Options& options) {
  Json json;
  std::string error, versions;
  const auto file = PluginFile::open(options.plugin_of(options.rank), &error);
  if (!file) {
    fail("dlopen: %s", error.c_str());
    return finish_mode(options, json);
  }
  for (int version : file->versions()) {
    versions += (versions.empty() ? "" : ", ") + std::to_string(version);
    Options own = options;
    own.version = version;
    const Loaded plugin = load(own);
    if (!plugin.net) continue;
    Communicator comm(*plugin.net, own, 0);
    if (!comm.init()) continue;
    for (int dev = 0; dev < comm.device_count(); ++dev) {
      Properties p;
      if (plugin.net->properties(dev, &p) != kSuccess) continue;
      say("v%d %s device %d: %s, %d Mbit/s, latency %.1f us, port %d, guid %llx, ptrSupport %d, maxRecvs %d, pciPath "
          "%s",
          version, plugin.net->name().c_str(), dev, p.name.c_str(), p.speed_mbit, static_cast<double>(p.latency_us),
          p.port, static_cast<unsigned long long>(p.guid), p.ptr_support, p.max_recvs,
          p.pci_path.empty() ? "-" : p.pci_path.c_str());
    }
  }
  if (versions.empty()) fail("exports no ncclNetPlugin_v8 to _v12");
  json.raw("versions", "[" + versions + "]");
  return finish_mode(options, json);
}

}  // namespace nccltest
