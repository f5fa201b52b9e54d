// One rank of bench/link_accuracy.py and bench/idle_cost.py: spells of traffic and of silence, and what is known of the
// links meanwhile.
//
//   link_rank BYTES PERIOD_MS SPELL...     SPELL is traffic:SECONDS or idle:SECONDS
//
// Traffic is one all-reduce of BYTES after the other, with 5 ms between them. Rank 0 keeps the time and tells the
// others before each operation how it goes on. It prints a line `spell N NAME` when one begins and, every PERIOD_MS (0:
// never), a line `link RANK DEVICE ALPHA_NS BETA AGE_NS` per link. Each rank prints `cpu N SECONDS OF` after an idle
// spell: processor time of the process, and how long the spell was.
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "canarynet/canarynet.hpp"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

double processor_seconds() {
  rusage u;
  getrusage(RUSAGE_SELF, &u);
  const auto of = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return of(u.ru_utime) + of(u.ru_stime);
}

struct Spell {
  bool traffic = false;
  double seconds = 0;
};

Spell spell_of(const std::string& text) {
  const auto colon = text.find(':');
  const std::string name = text.substr(0, colon);
  if (colon == std::string::npos || (name != "traffic" && name != "idle"))
    throw std::invalid_argument("\"" + text + "\": expected traffic:SECONDS or idle:SECONDS");
  return {name == "traffic", std::stod(text.substr(colon + 1))};
}

void print_links(const canarynet::Context& context) {
  for (const canary_link_stats& l : context.links()) {
    std::printf("link %d %s %llu %llu %llu\n", l.rank, l.device, static_cast<unsigned long long>(l.alpha_ns),
                static_cast<unsigned long long>(l.beta_bytes_per_second), static_cast<unsigned long long>(l.age_ns));
  }
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  if (argc < 4) throw std::invalid_argument("usage: link_rank BYTES PERIOD_MS SPELL...");
  const std::size_t count = std::max<std::size_t>(std::stoul(argv[1]) / sizeof(float), 1);
  const std::chrono::milliseconds period(std::stol(argv[2]));
  std::vector<Spell> spells;
  for (int i = 3; i < argc; ++i) spells.push_back(spell_of(argv[i]));

  canarynet::Context context;
  const bool first = context.rank() == 0;
  std::atomic<bool> over = false;
  std::thread printer;
  if (first && period.count() != 0) {
    printer = std::thread([&] {
      while (!over) {
        print_links(context);
        std::this_thread::sleep_for(period);
      }
    });
  }
  std::vector<float> values(count, 1);
  for (std::size_t i = 0; i < spells.size(); ++i) {
    const auto began = Clock::now();
    const double processor = processor_seconds();
    if (first) std::printf("spell %zu %s\n", i, spells[i].traffic ? "traffic" : "idle"), std::fflush(stdout);
    if (!spells[i].traffic) {
      std::this_thread::sleep_for(std::chrono::duration<double>(spells[i].seconds));
      std::printf("cpu %zu %.6f %.6f\n", i, processor_seconds() - processor, seconds_since(began));
      std::fflush(stdout);
      continue;
    }
    for (std::int32_t more = 1;;) {
      more = seconds_since(began) < spells[i].seconds;
      context.world().broadcast(std::span<std::int32_t>(&more, 1), 0);
      if (more == 0) break;
      context.world().all_reduce(std::span<float>(values));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  over = true;
  if (printer.joinable()) printer.join();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "link_rank: %s\n", e.what());
    return 1;
  }
}
