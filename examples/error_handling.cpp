// error_handling.cpp -- what a job sees when something goes wrong, and what it can do then: arguments that differ, a
// rank that does not come in time, a rank that dies. Every failure is an answer on every rank, with a name in it; none
// is a hang or a wrong sum.
//
//   canary-run -n 4 -- error_handling
//
// The rule behind it: an operation that fails ends its group. Pending and later operations of that group give the same
// verdict on all its ranks; other groups and the world go on, unless a rank is dead, which ends every group that has
// it.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <thread>
#include <vector>

#include "canarynet/canarynet.hpp"

namespace {

using canarynet::Context;
using canarynet::Error;
using canarynet::Group;

int g_unexpected = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "error_handling: not as expected: %s\n", what);
  ++g_unexpected;
}

Group everybody(Context& context) {
  std::vector<int> ranks(static_cast<std::size_t>(context.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return context.create_group(ranks);
}

void say(const Context& context, const char* what, const Error& error) {
  if (context.rank() == 0)
    std::printf("%s\n  code   %s\n  text   %s\n", what, canary_status_name(error.code()), error.what());
}

// A bug in the program: rank 1 reduces one element less. The arguments travel ahead of the data and are compared, so
// every rank hears both sides' values, and no buffer was filled with half a sum.
void arguments_that_differ(Context& context) {
  Group group = everybody(context);
  std::vector<float> gradient(context.rank() == 1 ? 999 : 1000, 1.0f);
  try {
    group.all_reduce(gradient);
    expect(false, "counts that differ are refused");
  } catch (const Error& error) {
    say(context, "arguments that differ", error);
    expect(error.code() == CANARY_MISMATCH, "the code is CANARY_MISMATCH");
  }
  try {
    group.barrier();
    expect(false, "the group has ended");
  } catch (const Error& error) {
    expect(error.code() == CANARY_MISMATCH, "later operations give the same verdict");
  }
  context.world().barrier();  // another group: it knows nothing of it
}

// The last rank is late. Without a deadline the others would wait up to CANARY_ENTRY_LIMIT (10 minutes); rank 0 has
// less patience, and its verdict is everybody's.
void a_deadline(Context& context) {
  Group group = everybody(context);
  std::vector<float> gradient(1000, 1.0f);
  const bool late = context.rank() == context.world_size() - 1;
  if (late) std::this_thread::sleep_for(std::chrono::milliseconds(600));
  try {
    auto operation = group.all_reduce_async(gradient);
    if (context.rank() == 0) operation.set_deadline(std::chrono::milliseconds(200));
    operation.wait();
    expect(false, "the deadline ends the operation");
  } catch (const Error& error) {
    say(context, "a deadline that passes", error);
    expect(error.code() == CANARY_DEADLINE, "the code is CANARY_DEADLINE");
  }
  context.world().barrier();
}

// The last rank's process ends without a farewell. The others hear of it at once, by name; what they can save is their
// own state, which no half-finished operation has touched: gradients are exchanged in buffers of their own.
void a_rank_that_dies(Context& context) {
  const int victim = context.world_size() - 1;
  std::vector<float> parameters(1000, 0.5f), gradient(1000);
  for (int step = 0;; ++step) {
    if (context.rank() == victim && step == 5) std::_Exit(0);  // no finalize: for the others this is a death
    std::fill(gradient.begin(), gradient.end(), 1.0f);
    try {
      context.world().all_reduce(gradient, CANARY_AVG);
    } catch (const Error& error) {
      say(context, "a rank that dies", error);
      if (context.rank() == 0) std::printf("  rank   %d on host %s\n", error.rank(), error.host().c_str());
      expect(error.code() == CANARY_PEER_DIED && error.rank() == victim, "the dead rank is named");
      expect(parameters[0] == 0.5f + static_cast<float>(step), "parameters are those of the last whole step");
      // Here a program writes its checkpoint. Then it ends, and is started again without the victim's host.
      return;
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i] += gradient[i];
  }
}

int run() {
  // Throws when the ranks do not all come, naming the missing ones.
  Context context;
  if (context.world_size() < 2) {
    std::fprintf(stderr, "error_handling: takes at least 2 ranks\n");
    return 1;
  }
  arguments_that_differ(context);
  a_deadline(context);
  a_rank_that_dies(context);
  context.finalize();  // leaving in good order works whatever happened before
  return g_unexpected == 0 ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error_handling: %s\n", error.what());
    return 1;
  }
}
