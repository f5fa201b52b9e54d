// canary-swarm: random lives from seeds, by the thousand. bench/soak.py drives it; by hand it replays one:
// canary-swarm lethal 2000007 1
//
// canary-swarm MODE FIRST_SEED LIVES [SECONDS]
//   MODE: calm (no faults), rough (faults that cost time only), lethal (something ends groups); near and near-lethal
//   are like rough and lethal for hosts that share machines, with pauses in the middle of frames and of all at once. In
//   training and training-lethal ranks take part in sessions, partial all-reduces and policies as well; many and
//   many-lethal are like these with up to 64 ranks.
// It prints a line per life that broke the verdict, and a last line of JSON. It ends early after SECONDS, and with
// CANARY_TEST_QUICK runs a fortieth of the lives. Status 1: a life failed.
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/log.h"
#include "sim/swarm.h"

int main(int argc, char** argv) {
  using namespace canarynet;
  const std::string mode = argc > 1 ? argv[1] : "";
  SwarmOptions options;
  const std::string kind = mode.substr(0, mode.rfind("-lethal"));
  options.lethal = mode == "lethal" || kind != mode;
  options.faults = mode != "calm";
  options.near = kind == "near";
  options.many = kind == "many";
  options.training = kind == "training" || options.many;
  if (argc < 4 || (mode != "calm" && mode != "rough" && mode != "lethal" && !options.near && !options.training)) {
    std::fprintf(stderr,
                 "usage: canary-swarm calm|rough|lethal|near|near-lethal|training|training-lethal|many|many-lethal "
                 "FIRST_SEED LIVES [SECONDS]\n");
    return 2;
  }
  const std::uint64_t first = std::strtoull(argv[2], nullptr, 10);
  std::uint64_t lives = std::strtoull(argv[3], nullptr, 10);
  if (std::getenv("CANARY_TEST_QUICK") != nullptr) lives = (lives + 39) / 40;
  const double seconds = argc > 4 ? std::atof(argv[4]) : 1e9;
  if (lives == 1) (void)write_log_as_environment_says();  // a replay is read line by line
  const auto began = std::chrono::steady_clock::now();
  std::uint64_t collectives = 0, messages = 0, faults = 0, errors = 0, failures = 0, seed = first;
  std::uint64_t stops = 0, given_up = 0, through_memory = 0;
  SwarmReport trained;
  double hours = 0;
  std::string failed;
  for (; seed < first + lives; ++seed) {
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() > seconds) break;
    options.seed = seed;
    const SwarmReport r = run_swarm(options);
    collectives += r.collectives;
    messages += r.messages;
    faults += r.faults;
    errors += r.errors;
    stops += r.stops;
    given_up += r.given_up;
    through_memory += r.through_memory;
    trained.gradients += r.gradients;
    trained.dropped += r.dropped;
    trained.rounds += r.rounds;
    trained.survived += r.survived;
    trained.exchanges += r.exchanges;
    trained.answers += r.answers;
    hours += r.virtual_time.seconds() / 3600;
    if (r.ok) continue;
    failed += (failures++ != 0 ? "," : "") + std::to_string(seed);
    std::printf("%s %" PRIu64 ": %s\n  %s\n", mode.c_str(), seed, r.failure.c_str(), r.shape.c_str());
    std::fflush(stdout);
  }
  std::printf("{\"mode\":\"%s\",\"first_seed\":%" PRIu64 ",\"lives\":%" PRIu64 ",\"collectives\":%" PRIu64
              ",\"messages\":%" PRIu64 ",\"faults\":%" PRIu64 ",\"errors\":%" PRIu64 ",\"stops\":%" PRIu64
              ",\"given_up\":%" PRIu64 ",\"through_memory\":%" PRIu64,
              mode.c_str(), first, seed - first, collectives, messages, faults, errors, stops, given_up,
              through_memory);
  if (options.training)
    std::printf(",\"gradients\":%" PRIu64 ",\"dropped\":%" PRIu64 ",\"rounds\":%" PRIu64 ",\"survived\":%" PRIu64
                ",\"exchanges\":%" PRIu64 ",\"answers\":%" PRIu64,
                trained.gradients, trained.dropped, trained.rounds, trained.survived, trained.exchanges,
                trained.answers);
  std::printf(",\"virtual_hours\":%.3f,\"failures\":[%s]}\n", hours, failed.c_str());
  return failures == 0 ? 0 : 1;
}
