// Asks the tuner that a file exports as NCCL asks it. The tuner may lower or raise costs, but must never make the
// impossible possible, never fail, and say the same for the same question. With --offer plain it has to know the
// algorithms that every network can run, and change their costs.
#include <cmath>
#include <cstring>

#include "tests/nccl/abi/tuner.h"
#include "tests/nccl/modes.h"

namespace nccltest {
namespace {

struct Table {
  float costs[kAlgorithms][kProtocols];
};

// Whether NCCL can run this algorithm of a collective without NVSwitch or SHARP.
bool plain(int function, int algorithm) {
  if (algorithm == kTree) return function == kAllReduce;
  if (algorithm == kPat) return function == kAllGather || function == kReduceScatter;
  return algorithm == kRing;
}

// Costs such as NCCL computes; every third combination not possible.
Table costs_of(bool all, int function, std::size_t bytes, std::uint64_t shape) {
  Table table;
  for (int a = 0; a < kAlgorithms; ++a) {
    for (int p = 0; p < kProtocols; ++p) {
      const std::uint64_t h = mix64(shape + static_cast<std::uint64_t>(a * 8 + p));
      const bool possible = h % 3 != 0 && (all || plain(function, a));
      const auto us = static_cast<float>(20 + h % 400 + bytes / 1000) * (1.0f + 0.1f * static_cast<float>(function));
      table.costs[a][p] = possible ? us : -1.0f;
    }
  }
  return table;
}

TunerConstants constants_of() {
  TunerConstants constants;
  auto* value = reinterpret_cast<double*>(&constants);
  for (std::size_t i = 0; i < sizeof constants / sizeof *value; ++i) value[i] = 1.0 + static_cast<double>(i) * 0.125;
  return constants;
}

// Asks everything twice; counts the costs that were changed.
template <typename GetCollInfo>
int ask(const char* version, void* context, GetCollInfo get_coll_info, bool all) {
  int changed = 0;
  for (int function = 0; function < kFunctions; ++function) {
    const int changed_before = changed;
    for (std::size_t bytes = 8; bytes <= (std::size_t{1} << 30); bytes *= 16) {
      for (std::uint64_t shape = 0; shape < 4; ++shape) {
        const Table before = costs_of(all, function, bytes, shape);
        Table answers[2] = {before, before};
        int channels[2] = {0, 0};
        for (int turn = 0; turn < 2; ++turn) {
          const Result result =
              get_coll_info(context, function, bytes, 1, reinterpret_cast<float**>(answers[turn].costs), kAlgorithms,
                            kProtocols, 0, &channels[turn]);
          if (result != kSuccess) fail("tuner %s: getCollInfo gave %s", version, result_name(result));
        }
        if (std::memcmp(&answers[0], &answers[1], sizeof before) != 0 || channels[0] != channels[1]) {
          fail("tuner %s: two answers to one question (function %d, %zu bytes)", version, function, bytes);
        }
        for (int a = 0; a < kAlgorithms; ++a) {
          for (int p = 0; p < kProtocols; ++p) {
            const float was = before.costs[a][p], is = answers[0].costs[a][p];
            if (was < 0 ? is != was : !(is >= 0) || !std::isfinite(is)) {
              fail("tuner %s: the cost of algorithm %d, protocol %d was %g and is %g", version, a, p,
                   static_cast<double>(was), static_cast<double>(is));
            }
            changed += is != was;
          }
        }
        if (channels[0] < 0 || channels[0] > 64) fail("tuner %s: %d channels", version, channels[0]);
      }
    }
    if (!all && changed == changed_before) fail("tuner %s: no cost of function %d was changed", version, function);
  }
  return changed;
}

template <typename Tuner>
void drive(const char* version, const Tuner& tuner, bool all, Json& json) {
  if (!tuner.name || !tuner.init || !tuner.get_coll_info) return fail("tuner %s: a member is NULL", version);
  void* context = nullptr;
  TunerConstants constants = constants_of();
  const TunerConstants before = constants;
  NvlDomainInfo nvl{2, 1, 1};
  Result result;
  if constexpr (requires { tuner.destroy; }) {
    result = tuner.init(2, 2, plugin_logger(), &context);
  } else {
    result = tuner.init(&context, 1, 2, 2, plugin_logger(), &nvl, &constants);
  }
  if (result != kSuccess) return fail("tuner %s: init gave %s", version, result_name(result));
  const bool edited = std::memcmp(&constants, &before, sizeof before) != 0;
  const int changed = ask(version, context, tuner.get_coll_info, all);
  json.add(std::string(version) + "_costs_changed", changed)
      .add(std::string(version) + "_constants_edited", edited ? 1 : 0);
  if constexpr (requires { tuner.get_chunk_size; }) {
    std::size_t chunk = 1 << 19;
    if (tuner.get_chunk_size &&
        (tuner.get_chunk_size(context, 4, 1 << 20, 1, 2, 2, &chunk) != kSuccess || chunk == 0 || chunk > (1 << 30))) {
      fail("tuner %s: getChunkSize gave %zu", version, chunk);
    }
  }
  if constexpr (requires { tuner.destroy; }) {
    result = tuner.destroy(context);
  } else {
    result = tuner.finalize(context);
  }
  if (result != kSuccess) fail("tuner %s: its end gave %s", version, result_name(result));
}

}  // namespace

int tuner_mode(const Options& options) {
  Json json;
  std::string error;
  const auto file = PluginFile::open(options.plugin_of(options.rank), &error);
  if (!file) {
    fail("dlopen: %s", error.c_str());
    return finish_mode(options, json);
  }
  const bool all = options.offer == "all";
  int found = 0;
  if (void* symbol = file->symbol("ncclTunerPlugin_v6"))
    ++found, drive("v6", *static_cast<const TunerV6*>(symbol), all, json);
  if (void* symbol = file->symbol("ncclTunerPlugin_v5"))
    ++found, drive("v5", *static_cast<const TunerV5*>(symbol), all, json);
  if (void* symbol = file->symbol("ncclTunerPlugin_v4"))
    ++found, drive("v4", *static_cast<const TunerV4*>(symbol), all, json);
  json.add("tuners", found);
  if (found == 0) fail("exports no ncclTunerPlugin_v4 to _v6");
  return finish_mode(options, json);
}

}  // namespace nccltest
