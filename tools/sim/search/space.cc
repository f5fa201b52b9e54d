#include "tools/sim/search/space.h"

#include <algorithm>
#include <cmath>

#include "tools/sim/print.h"

namespace canarynet::sim {
namespace {

constexpr std::uint64_t kPieceUnit = 128;

double between(double low, double high, int i, int count) {
  return count < 2 ? low : low * std::pow(high / low, static_cast<double>(i) / (count - 1));
}

// With two digits.
std::uint32_t ppm_of(double ratio) {
  const double digit = std::pow(10, std::floor(std::log10(ratio)) - 1);
  return static_cast<std::uint32_t>(std::lround(std::round(ratio / digit) * digit * 1e6));
}

// Item of a list of `items` for a gene of `genes` values.
std::size_t item_of(int gene, int genes, std::size_t items) {
  return static_cast<std::size_t>(gene) * items / static_cast<std::size_t>(genes);
}

}  // namespace

Space::Space(const SpaceOptions& options, Planners planners) : options_(options), planners_(std::move(planners)) {
  for (const CodecKind kind : {CodecKind::kDense, CodecKind::kF16, CodecKind::kBf16, CodecKind::kInt8,
                               CodecKind::kOneBit, CodecKind::kSignSgd})
    families_.push_back({{.kind = kind}});
  for (const bool mean : {false, true}) {
    auto& sketches = families_.emplace_back();
    for (std::uint8_t bits = 1; bits <= 8; ++bits)
      sketches.push_back({.kind = CodecKind::kSketch, .bits = bits, .member_mean = mean});
  }
  const auto sparsifier = [&](CodecKind kind, std::uint8_t bits) {
    auto& family = families_.emplace_back();
    for (int i = 0; i < options.ratios; ++i) {
      const double ratio = between(options.ratio_low, options.ratio_high, i, options.ratios);
      family.push_back({.kind = kind, .bits = bits, .ratio_ppm = ppm_of(ratio)});
    }
  };
  for (const CodecKind kind : {CodecKind::kTopK, CodecKind::kMsTopK, CodecKind::kRandomK}) sparsifier(kind, 0);
  sparsifier(CodecKind::kArTopK, kArTopKStar);
  sparsifier(CodecKind::kArTopK, kAgTopK);
  for (int i = 0; i < options.pieces; ++i) {
    const double bytes =
        between(static_cast<double>(options.piece_low), static_cast<double>(options.piece_high), i, options.pieces);
    pieces_.push_back(static_cast<std::uint64_t>(std::llround(bytes / kPieceUnit)) * kPieceUnit);
  }
}

const std::vector<PlannerId>& Space::planners_of(const CodecSpec& codec) const {
  if (codec.kind == CodecKind::kArTopK) return codec.bits == kAgTopK ? planners_.all_gather : planners_.dense;
  return codec.kind == CodecKind::kDense ? planners_.dense : planners_.coded;
}

std::array<int, 4> Space::counts() const {
  std::size_t parameters = 1;
  for (const auto& family : families_) parameters = std::max(parameters, family.size());
  const std::size_t planners = std::max({planners_.dense.size(), planners_.coded.size(), planners_.all_gather.size()});
  return {static_cast<int>(families_.size()), static_cast<int>(parameters), static_cast<int>(pieces_.size()),
          static_cast<int>(planners)};
}

Design Space::at(std::span<const int> genes) const {
  const auto counts = this->counts();
  const auto& family = families_[static_cast<std::size_t>(genes[0])];
  const CodecSpec& codec = family[item_of(genes[1], counts[1], family.size())];
  const auto& planners = planners_of(codec);
  return {codec, pieces_[static_cast<std::size_t>(genes[2])], planners[item_of(genes[3], counts[3], planners.size())]};
}

std::vector<Design> Space::all() const {
  std::vector<Design> out;
  for (const auto& family : families_) {
    for (const CodecSpec& codec : family) {
      for (const std::uint64_t piece : pieces_) {
        for (const PlannerId planner : planners_of(codec)) out.push_back({codec, piece, planner});
      }
    }
  }
  return out;
}

std::string Space::text() const {
  std::string out;
  for (const auto& family : families_) {
    out += (out.empty() ? "" : ", ") + to_text(family.front());
    if (family.size() > 1) out += " to " + to_text(family.back());
  }
  return out;
}

}  // namespace canarynet::sim
