// collectives/walk_ports.h -- what waits for the ports of a cost walk (collectives/walk.h), and when they are free: one
// direction of all ports. Pure; one thread; allocates. Units: seconds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace canarynet {

// A message that waits for a port. Those of one step that are next to each other take one place in the heap: that of
// the first, which goes before the others anyway.
struct WalkItem {
  double at;
  std::uint32_t piece;
  std::uint32_t step, task;  // on the port's side
};
struct WalkBehind {
  bool operator()(const WalkItem& a, const WalkItem& b) const {
    return a.piece != b.piece ? a.piece > b.piece
           : a.at != b.at     ? a.at > b.at
           : a.step != b.step ? a.step > b.step
                              : a.task > b.task;
  }
};

struct WalkPorts {
  // Messages that take the same rails of a port.
  struct Queue {
    std::uint32_t port = 0, rails = 0;
    std::uint32_t gate = 0;
    double free = 0;                   // when its rails are
    std::vector<WalkItem> items = {};  // a heap
  };
  // Queues of one port whose rails overlap, so that they wait for each other.
  struct Gate {
    std::uint32_t queue_begin = 0, queue_end = 0;
    double wakes_at = -1;  // when it next looks for work; < 0: not planned
    bool dirty = false;
  };

  // Queues come sorted by port. Those of a port that share no rail are gates of their own; otherwise the port is one.
  void make_gates() {
    for (std::uint32_t begin = 0, end = 0; begin < queues.size(); begin = end) {
      std::uint32_t taken = 0;
      bool apart = true;
      for (end = begin; end < queues.size() && queues[end].port == queues[begin].port; ++end) {
        apart = apart && (taken & queues[end].rails) == 0;
        taken |= queues[end].rails;
      }
      for (std::uint32_t q = begin; q < end; ++q) {
        if (apart || q == begin) gates.push_back({.queue_begin = q, .queue_end = apart ? q + 1 : end});
        queues[q].gate = static_cast<std::uint32_t>(gates.size() - 1);
      }
    }
  }

  void occupy(const Queue& queue, double until) {
    const Gate& gate = gates[queue.gate];
    for (std::uint32_t q = gate.queue_begin; q < gate.queue_end; ++q) {
      Queue& other = queues[q];
      if ((other.rails & queue.rails) != 0) other.free = std::max(other.free, until);
    }
  }
  void touch(std::uint32_t gate) {
    if (gates[gate].dirty) return;
    gates[gate].dirty = true;
    dirty.push_back(gate);
  }
  // Something has changed at `now`: the port may be free.
  void look_again(std::uint32_t queue, double now) {
    Gate& gate = gates[queues[queue].gate];
    if (gate.wakes_at == now) gate.wakes_at = -1;
    touch(queues[queue].gate);
  }

  std::vector<Queue> queues;
  std::vector<Gate> gates;
  std::vector<std::uint32_t> dirty;  // gates to look at before time goes on
};

}  // namespace canarynet
