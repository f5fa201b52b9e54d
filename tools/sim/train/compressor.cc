#include "tools/sim/train/compressor.h"

#include <string>

#include "base/check.h"

namespace canarynet::sim {
namespace {

Coding coding_of(const CodecSpec& spec, std::size_t count) {
  Coding coding;
  coding.spec = spec;
  coding.segment.count = count;
  return coding;
}

}  // namespace

Result<CodecSpec> Compressor::parse(std::string_view text) {
  auto spec = parse_codec(text);
  if (!spec.ok()) return spec;
  const PartialSums sums = traits_of(spec.value()).sums;
  if (sums == PartialSums::kRecode || sums == PartialSums::kAddBodies) return spec;
  return Status(CANARY_INVALID_ARGUMENT,
                "codec " + to_text(spec.value()) + ": what it sends can't be summed in an all-reduce");
}

double Compressor::share(const CodecSpec& spec) {
  constexpr std::size_t kCount = 1 << 20;
  return static_cast<double>(body_bytes_max(coding_of(spec, kCount), {0, kCount})) / (sizeof(float) * kCount);
}

Compressor::Compressor(const CodecSpec& spec, std::vector<Slice> slices, int workers)
    : spec_(spec), slices_(std::move(slices)), left_(static_cast<std::size_t>(workers)) {
  for (ErrorFeedback& left : left_) {
    for (std::size_t z = 0; z < slices_.size(); ++z) {
      const Status made = left.prepare(z, slices_[z].size);
      CANARY_CHECK(made.ok(), "a residual was prepared twice");
    }
  }
}

Status Compressor::apply(int worker, int z, std::span<float> values) {
  const Coding coding = coding_of(spec_, values.size());
  ErrorFeedback& left = left_[static_cast<std::size_t>(worker)];
  const auto tensor = static_cast<std::uint64_t>(z);
  compensated_.resize(values.size());
  workspace_.resize(workspace_bytes(coding));
  encoded_.resize(whole_bytes_max(coding));
  left.compensate(tensor, values.data(), values.size(), compensated_.data());
  const auto bytes = encode_whole(coding, compensated_.data(), workspace_, {}, encoded_);
  if (!bytes.ok()) return bytes.status();
  const Status decoded =
      decode_whole(coding, std::span(encoded_).first(bytes.value()), workspace_, values.data(), false);
  if (!decoded.ok()) return decoded;
  left.settle(tensor, compensated_.data(), values.data(), values.size());
  return {};
}

}  // namespace canarynet::sim
