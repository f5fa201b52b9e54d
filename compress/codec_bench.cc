// canary-codec-bench: how fast one core encodes and decodes, as ratios to memcpy of the same f32 values.
//
//   canary-codec-bench [--quick] [--require] [CODEC...]
//
// The values are normally distributed, in one segment of 1, 4 or 64 MiB. Times are the best of several rounds, and each
// round times memcpy (into memory that was touched before) beside the codec, so that both meet the same machine. "fit"
// is what a segment costs once; "encode" includes it; "send" is the encoding of pieces alone, as a pipeline sees it
// once the head is there. "error" is the length of what is lost over the length of the input. Pieces are 256 KiB.
// --quick: 1 MiB, one round (a test). --require: exit status 1 if a goal of docs/compression.md is missed at 64 MiB; at
// smaller sizes it is only told.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "compress/codec.h"
#include "compress/codec_test_util.h"
#include "kernels/reduce.h"

namespace canarynet {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPiece = 65536;  // elements: 256 KiB

double seconds(const std::function<void()>& work) {
  const Clock::time_point begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Goal {
  const char* codec;
  double encode;
  double decode;
};
constexpr Goal kGoals[] = {{"sketch:8", 0.25, 0.5}, {"int8", 0.5, 0.5}, {"bf16", 0.5, 0.5}, {"topk:0.01", 0.25, 0}};

struct Bench {
  std::vector<float> values, out;
  double copy = 1e9, fit = 1e9, send = 1e9, decode = 1e9, add = 1e9;
  std::size_t wire_bytes = 0;
  double checksum = 0;
  double error = 0;  // ||x - decoded|| / ||x||

  explicit Bench(std::size_t count) : values(codec_test::make(codec_test::Data::kGaussian, count, 1)), out(count) {}

  bool run(const CodecSpec& spec, int rounds) {
    copy = fit = send = decode = add = 1e9;
    Coding coding{spec, codec_test::segment_of(values.size())};
    std::vector<std::byte> workspace(workspace_bytes(coding)), other(workspace_bytes(coding));
    std::vector<float> state(state_floats(coding));
    SegmentEncoder encoder(coding, workspace, state);
    SegmentDecoder decoder(coding, other);
    std::vector<std::uint8_t> head(head_bytes_max(coding));
    std::vector<Piece> pieces;
    std::vector<std::vector<std::uint8_t>> bodies;
    for (std::size_t begin = 0; begin < values.size(); begin += kPiece) {
      pieces.push_back({begin, std::min(kPiece, values.size() - begin)});
      bodies.emplace_back(body_bytes_max(coding, pieces.back()));
    }
    std::vector<std::size_t> sizes(pieces.size());
    bool good = true;
    for (int round = 0; round < rounds; ++round) {
      copy = std::min(copy, seconds([&] { std::memcpy(out.data(), values.data(), 4 * values.size()); }));
      std::size_t head_bytes = 0;
      fit = std::min(fit, seconds([&] {
                       const Result<std::size_t> fitted = encoder.fit(values.data(), head);
                       good = good && fitted.ok();
                       head_bytes = fitted.ok() ? fitted.value() : 0;
                     }));
      send = std::min(send, seconds([&] {
                        for (std::size_t i = 0; i < pieces.size(); ++i) {
                          const auto body = encoder.encode(pieces[i], values.data() + pieces[i].begin, bodies[i]);
                          good = good && body.ok();
                          sizes[i] = body.ok() ? body.value() : 0;
                        }
                      }));
      const auto decode_all = [&](bool adding) {
        good = good && decoder.open({head.data(), head_bytes}).ok();
        for (std::size_t i = 0; i < pieces.size() && good; ++i) {
          const std::span<const std::uint8_t> body(bodies[i].data(), sizes[i]);
          float* const target = out.data() + pieces[i].begin;
          good = (adding ? decoder.decode_add(pieces[i], body, target) : decoder.decode(pieces[i], body, target)).ok();
        }
      };
      decode = std::min(decode, seconds([&] { decode_all(false); }));
      checksum = 0;
      for (const float value : out) checksum += value;
      double missed = 0, all = 0;
      for (std::size_t i = 0; i < out.size(); ++i) {
        missed += (static_cast<double>(values[i]) - out[i]) * (static_cast<double>(values[i]) - out[i]);
        all += static_cast<double>(values[i]) * values[i];
      }
      error = std::sqrt(missed / all);
      add = std::min(add, seconds([&] { decode_all(true); }));
      wire_bytes = head_bytes;
      for (const std::size_t bytes : sizes) wire_bytes += bytes;
    }
    return good;
  }
};

}  // namespace

int run(int argc, char** argv) {
  bool quick = false, require = false;
  std::vector<std::string> codecs;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--quick") {
      quick = true;
    } else if (argument == "--require") {
      require = true;
    } else if (const auto spec = parse_codec(argument); spec.ok()) {
      codecs.push_back(argument);
    } else {
      std::fprintf(stderr, "canary-codec-bench: %s (takes --quick, --require and codecs)\n",
                   spec.status().text().c_str());
      return 2;
    }
  }
  if (codecs.empty()) {
    codecs = {"dense",    "fp16",      "bf16",       "int8",        "sketch:8",        "sketch:8,mean",
              "sketch:4", "topk:0.01", "topk:0.001", "lwtopk:0.01", "mstopk:0.01",     "randomk:0.01",
              "onebit",   "signsgd",   "terngrad",   "power:4",     "power:4+sketch:8"};
    if (!quick) codecs.emplace_back("svd:4");
  }
  const std::vector<std::size_t> sizes =
      quick ? std::vector<std::size_t>{1} : std::vector<std::size_t>{1, 4, 64};  // MiB
  const DenormalGuard guard;
  std::printf("kernels: %s; ratios to memcpy of the f32 values\n", kernels_name());
  std::printf("%-18s %4s %8s %8s %8s %8s %8s %8s %8s %8s  %s\n", "codec", "MiB", "memcpy", "encode", "fit", "send",
              "decode", "add", "wire", "error", "checksum");
  bool missed = false;
  for (const std::size_t mib : sizes) {
    Bench bench(mib << 18);
    for (const std::string& text : codecs) {
      const CodecSpec spec = parse_codec(text).value();
      if (mib > 4 && spec.kind == CodecKind::kSvd) continue;  // minutes
      const bool slow = spec.kind == CodecKind::kSvd || mib > 4;
      if (!bench.run(spec, quick ? 1 : slow ? 5 : 40)) {
        std::fprintf(stderr, "%s failed\n", text.c_str());
        return 1;
      }
      const double encode = bench.copy / (bench.fit + bench.send), decode = bench.copy / bench.decode;
      std::printf("%-18s %4zu %5.1fGB/s %8.2f %8.2f %8.2f %8.2f %8.2f %7.2f%% %7.2f%%  %.6g\n", text.c_str(), mib,
                  4e-9 * static_cast<double>(bench.values.size()) / bench.copy, encode, bench.copy / bench.fit,
                  bench.copy / bench.send, decode, bench.copy / bench.add,
                  100.0 * static_cast<double>(bench.wire_bytes) / (4.0 * static_cast<double>(bench.values.size())),
                  100 * bench.error, bench.checksum);
      for (const Goal& goal : kGoals) {
        if (text != goal.codec || quick || (encode >= goal.encode && decode >= goal.decode)) continue;
        std::printf("  goal missed: %s encode %.2f (goal %.2f), decode %.2f (goal %.2f)\n", text.c_str(), encode,
                    goal.encode, decode, goal.decode);
        missed = missed || mib >= 64;
      }
    }
  }
  return require && missed ? 1 : 0;
}

}  // namespace canarynet

int main(int argc, char** argv) { return canarynet::run(argc, argv); }
