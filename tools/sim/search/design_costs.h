// tools/sim/search/design_costs.h -- what one design costs: seconds to compress, seconds to exchange, 1 / gain.
//
// Encoding and decoding count apart from the exchange, as in FlexComm, by what the slowest rank does (coded_work.h) and
// what the codec does to a sample (codec_sample.h). A codec that a value goes through several times leaves something
// out each time; errors of different ranks' values add up by their energy, so the gain is that of one encoding to the
// power of the mean number of them. Error feedback is on. Remembers what it has sampled. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "compress/ratio_controller.h"
#include "tools/sim/search/codec_sample.h"
#include "tools/sim/search/exchanges.h"
#include "tools/sim/search/space.h"

namespace canarynet::sim {

struct CostedRun {
  Network network;
  double parameters = 1;   // of 4 bytes
  double codec_speed = 0;  // bytes of f32 a second, of every codec and of adding; 0: measured
  std::size_t sample_elements = 256 * 1024;
};

struct DesignCost {
  RatioCost cost = {};
  double gain = 1;
};

class DesignCosts {
 public:
  explicit DesignCosts(const CostedRun& run);
  DesignCost of(const Design& design);
  Space::Planners planners() const;

 private:
  const CodecSample& sample(const CodecSpec& codec, std::uint64_t piece_bytes);

  CostedRun run_;
  SampleGradient gradient_;
  std::map<std::pair<std::string, std::uint64_t>, CodecSample> samples_;
  Exchanges exchanges_;
};

}  // namespace canarynet::sim
