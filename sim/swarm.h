// sim/swarm.h -- one seed makes one random cluster life: shape, settings, calls and faults. It is judged by
// reliability's verdict.
//
// The verdict: every call ends on every surviving rank, in bounded time, with the exact result or with an error. After
// an error the group is dead on all of its ranks, with a verdict that names what was really done to it, and other
// groups live on. Without a lethal event every call must succeed. No frame leaves from memory that was given back, and
// nothing is written there. Everything follows from the seed, so a failure replays bit for bit: run_swarm() with the
// options it reports.
// Parts: swarm_life (the drawing of a life); swarm_traffic, swarm_sessions, swarm_partials and swarm_policies (what the
// ranks do, and its judgement); swarm_faults (faults that cost time only); swarm_blame (which errors may name whom).
#pragma once

#include <cstdint>
#include <string>

#include "base/units.h"

namespace canarynet {

struct SwarmOptions {
  std::uint64_t seed = 1;
  bool lethal =
      false;  // something ends groups: a host crashes, stops or is cut off; a caller aborts, or has a deadline
  bool faults = true;
  // Hosts share machines and meet over shared memory, in rings hardly larger than a piece; some stop reading while
  // frames are half written, and now and then all stop at once, for longer than the silence limit. All of it is drawn
  // beside the rest, from a stream of its own.
  bool near = false;
  // Beside the rest ranks train: they take part in sessions, waves of partial all-reduces, and policies that ask. Each
  // is drawn from a stream of its own.
  bool training = false;
  bool many = false;  // from 17 to 64 ranks
};

struct SwarmReport {
  bool ok = true;
  std::string failure;            // what broke the verdict
  std::string shape;              // the cluster and its options, for people
  std::uint64_t hash = 0;         // of all events and results: equal on every replay
  std::uint64_t collectives = 0;  // group-wide operations
  std::uint64_t messages = 0;
  std::uint64_t errors = 0;          // rank-wise error results
  std::uint64_t faults = 0;          // injected
  std::uint64_t stops = 0;           // of all hosts at once
  std::uint64_t given_up = 0;        // frames taken back half written
  std::uint64_t through_memory = 0;  // bytes that left over shared memory
  // SwarmOptions::training
  std::uint64_t gradients = 0;  // pushed into sessions
  std::uint64_t dropped = 0;    // of them
  std::uint64_t rounds = 0;     // of sessions, each counted where its result was seen
  std::uint64_t survived = 0;   // sessions that finished without some of their workers
  std::uint64_t exchanges = 0;  // calls of partial all-reduces
  std::uint64_t answers = 0;    // to workers of policies
  Nanos virtual_time;
};

SwarmReport run_swarm(const SwarmOptions& options);

}  // namespace canarynet
