// runtime/counters.h -- fills an engine's table of counters in shared memory (daemon/ipc/counters.h), now and then.
//
// Threads: whoever drives the engine. Memory: its own; publish() neither allocates nor calls the system.
// Failures: where the system refuses memory to share, it says so in the log and counts for nobody.
#pragma once

#include <span>
#include <string>

#include "daemon/ipc/counters_writer.h"
#include "engine/endpoint_link.h"
#include "engine/engine.h"

namespace canarynet {

class EngineCounters {
 public:
  static constexpr Nanos kInterval = 100_ms;

  // Counters of a rank, or of several local ones.
  EngineCounters(const Engine& engine, std::span<const int> ranks, int world_size, Nanos now);
  explicit EngineCounters(const Endpoint& endpoint, Nanos now);

  // Whether it is time again.
  bool due(Nanos now) const { return now >= next_; }
  Nanos next() const { return next_; }
  void publish(const Engine& engine, Nanos now);
  void publish(const Endpoint& endpoint, Nanos now);

 private:
  void begin(std::span<const Rail> rails, const std::string& host);
  template <typename Source>
  void fill_links(const Source& source);
  void fill_choices(const Engine& engine);
  void fill_codec_choices(const Engine& engine);
  template <typename Source>
  void fill_messages(const Source& source);
  void finish(Nanos now);

  ipc::CountersWriter writer_;
  std::vector<RailStats> rails_;  // sums in the making
  Nanos next_;
};

}  // namespace canarynet
