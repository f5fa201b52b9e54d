// options.h -- what the user asked for. Every error names the option, its value and what it takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace train {

struct Options {
  std::string data = "/usr/share/datasets/fashion-mnist";
  std::string network = "dense";  // or "conv"
  std::string codec;              // of the gradient's exchange; empty: none
  bool feedback = true;           // what the codec leaves out joins the next gradient
  float codec_momentum = 0;
  double ratio_high = 0, ratio_low = 0;  // between which the share that the codec keeps is chosen; 0: it says itself
  std::size_t warm_up = 0;               // steps
  bool one_bucket = false;
  std::string merge = "exact";  // without a codec
  std::size_t steps = 700;
  std::size_t batch = 128;  // per rank
  float rate = 0.1f;
  float momentum = 0.9f;
  std::uint64_t seed = 1;
  std::size_t report_every = 50;  // steps
  double accuracy_min = 0;        // share, 0..1
  std::size_t exchange_only = 0;  // > 0: so many exchanges instead of training
  std::string json;
  std::string sync;                                       // policy; empty: an all-reduce of every gradient
  std::vector<std::pair<std::size_t, double>> slow = {};  // rank, how many times slower it computes
  double pace_ms = 0;                                     // that an iteration's computation takes at least
  double seconds = 0;                                     // > 0: trains for so long, in place of `steps`

  double slowness_of(int rank) const;
  // Whether the codec takes a matrix at a time.
  bool of_matrices() const { return codec.rfind("power:", 0) == 0 || codec.rfind("svd:", 0) == 0; }
};

struct Parsed {
  int exit_status = -1;  // -1: go on; else print `text` and leave
  std::string text;
  Options options;
};
// Arguments without the program's name.
Parsed parse_options(const std::vector<std::string>& arguments);

}  // namespace train
