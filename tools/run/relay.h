// tools/run/relay.h -- delay for kernels without netem: packets of one interface leave another one later.
//
// A process serves several links, each in one direction: read on `from` through a packet ring, written on `to`. The
// ring is the delay line: a frame stays in its slot until it is due, and order is kept. Packets that find the ring full
// are lost, as in a switch. Segmentation offload must be off at the sender: a frame larger than a slot is lost.
// Accuracy: some 50 us late on an idle machine, more without real-time priority.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace canarynet::run {

// canary-run writes these in shared memory, and the relay reads them.
struct RelayKnobs {
  std::atomic<std::int64_t> delay_ns{0};
  std::atomic<std::int64_t> jitter_ns{0};
  std::atomic<std::uint64_t> relayed{0};
  std::atomic<std::uint64_t> lost{0};
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free, "the knobs lie in memory shared between processes");

struct RelayLink {
  std::string from, to;
  int mtu = 1500;
  int slots = 2048;
  RelayKnobs* knobs = nullptr;
};

// Serves until killed, in the network namespace of the caller. `ready_fd` gets "" and is closed when all links are
// open, else it gets the error's text. Returns only on failure.
void run_relay(const std::vector<RelayLink>& links, int ready_fd);

}  // namespace canarynet::run
