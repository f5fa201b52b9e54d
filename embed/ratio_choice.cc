#include "embed/ratio_choice.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string_view>
#include <utility>

#include "collectives/topk_cost.h"
#include "compress/codec_ask.h"
#include "compress/error_feedback.h"
#include "embed/last_error.h"
#include "runtime/machine_costs.h"

namespace canarynet {
namespace {

constexpr int kIterationsMax = 10'000;
constexpr double kLowest = 1e-6;  // the unit of a codec's ratio
// Links that differ from what they were by more than that have changed.
constexpr double kLinkChange = 0.25, kAlphaNoise = 50e-6;

bool moved(const LinkCost& from, const LinkCost& to) {
  return std::fabs(to.alpha - from.alpha) > kLinkChange * from.alpha + kAlphaNoise ||
         std::fabs(to.beta - from.beta) > kLinkChange * from.beta;
}

bool is_number(double v) { return std::isfinite(v); }

Status check(const canary_ratio_options& o) {
  if (o.codec == nullptr) return bad("codec is NULL");
  if (o.checkpoint == nullptr) return bad("checkpoint is NULL: candidates are tried from a checkpoint");
  if (o.tensor == 0) return bad("tensor is 0: the gain is that of a tensor's error feedback");
  if (o.count == 0) return bad("count is 0");
  if (!is_number(o.high) || !is_number(o.low) || o.low < kLowest || o.low > o.high || o.high > 1) {
    return bad("low is " + std::to_string(o.low) + " and high " + std::to_string(o.high) +
               ": takes 0.000001 <= low <= high <= 1");
  }
  if (!is_number(o.factor) || o.factor < 1.1)
    return bad("factor is " + std::to_string(o.factor) + ": takes 1.1 or more");
  if (!is_number(o.gain_change) || o.gain_change <= 0)
    return bad("gain_change is " + std::to_string(o.gain_change) + ": takes more than 0");
  if (o.iterations < 1 || o.iterations > kIterationsMax) {
    return bad("iterations is " + std::to_string(o.iterations) + ": takes 1 to " + std::to_string(kIterationsMax));
  }
  if (o.reserved != 0) return bad("reserved is " + std::to_string(o.reserved) + ", not 0");
  return {};
}

// A batch that memory ran out in can't be gone on with.
template <typename Body>
Status guard(const Body& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return no_memory();
  }
}

RatioOptions controller_options(const canary_ratio_options& o) {
  RatioOptions out;
  out.high = o.high;
  out.low = o.low;
  out.factor = o.factor;
  out.explore_iterations = 1;  // a report tells of all iterations of a candidate
  out.gain_change = o.gain_change;
  out.gain_weight = 1 - std::pow(1 - out.gain_weight, o.iterations);
  return out;
}

}  // namespace

RatioChoice::RatioChoice(const GroupPlace& place, const canary_ratio_options& options)
    : place_(place), options_(options) {
  options_.codec = nullptr;
}

// --- creation --------------------------------------------------------------------------------------------------------

Result<std::shared_ptr<RatioChoice>> RatioChoice::create(const GroupPlace& place, const canary_ratio_options& options) {
  if (Status s = check(options); !s.ok()) return s;
  std::shared_ptr<RatioChoice> made(new RatioChoice(place, options));
  if (Status s = made->declare(options.codec); !s.ok()) return s;
  if (Status s = made->agree(); !s.ok()) return s;
  made->controller_.emplace(controller_options(options),
                            [choice = made.get()](double ratio) { return choice->sync_seconds(ratio); });
  return made;
}

// Finds the candidates' codecs, and how long this machine takes for each.
Status RatioChoice::declare(const char* codec) {
  const std::string_view text = codec;
  const std::size_t comma = std::min(text.find(','), text.size());
  for (const double ratio : ratio_candidates(controller_options(options_))) {
    std::array<char, 32> number{};
    std::snprintf(number.data(), number.size(), ":%.6g", ratio);
    const std::string whole = std::string(text.substr(0, comma)) + number.data() + std::string(text.substr(comma));
    const auto asked = number_asked(whole);
    if (!asked.ok()) return asked.status();
    const auto spec = codec_named(asked.value());
    if (!spec.ok()) return spec.status();
    const CodecSpec s = spec.value();
    const bool ag = s.kind == CodecKind::kArTopK && s.bits == kAgTopK, ar = s.kind == CodecKind::kArTopK && !ag;
    if (!ar && !ag && s.kind != CodecKind::kTopK && s.kind != CodecKind::kLayerTopK && s.kind != CodecKind::kMsTopK)
      return bad("codec \"" + std::string(text) + "\": a ratio is chosen for topk, lwtopk, mstopk, artopk and agtopk");
    ring_or_tree_ = ar;
    all_gather_ = !ar || asks_for_choice(asked.value());
    by_variance_ = ar && whole.starts_with("artopk:var");
    const CodecSpec timed = ar || ag ? CodecSpec{.kind = CodecKind::kTopK, .ratio_ppm = s.ratio_ppm} : s;
    const double seconds = measure_codec(timed).encode * static_cast<double>(options_.count) * sizeof(float);
    candidates_.push_back({ratio, asked.value(), seconds});
  }
  return {};
}

// Compares what ranks have given, takes the slowest rank's times, and looks at the links for the first time.
Status RatioChoice::agree() {
  enum Word : std::size_t {
    kCodec,
    kTensor,
    kTensorHigh,
    kCount,
    kCountHigh,
    kHigh,
    kLow,
    kFactor,
    kGainChange,
    kIterations,
    kWords
  };
  constexpr std::array<const char*, kWords> kNames = {
      "the codec", "the tensor", "the tensor", "count", "count", "high", "low", "factor", "gain_change", "iterations"};
  const auto low = [](std::uint64_t word) { return static_cast<double>(word & 0xffffffff); };
  const auto high = [](std::uint64_t word) { return static_cast<double>(word >> 32); };
  std::vector<double> own = {static_cast<double>(candidates_.front().codec),
                             low(options_.tensor),
                             high(options_.tensor),
                             low(options_.count),
                             high(options_.count),
                             options_.high,
                             options_.low,
                             options_.factor,
                             options_.gain_change,
                             static_cast<double>(options_.iterations)};
  if (Status s = all_gather(own); !s.ok()) return s;
  const auto n = static_cast<std::size_t>(place_.shape.size);
  for (std::size_t r = 1; r < n; ++r) {
    for (std::size_t w = 0; w < kWords; ++w) {
      if (gathered_[r * kWords + w] == gathered_[w]) continue;
      return Status(CANARY_MISMATCH,
                    "ranks 0 and " + std::to_string(r) + " create different ratios: " + kNames[w] + " differs");
    }
  }
  own.clear();
  for (const Candidate& c : candidates_) own.push_back(c.compress_seconds);
  if (Status s = all_gather(own); !s.ok()) return s;
  for (std::size_t r = 0; r < n; ++r) {
    for (std::size_t c = 0; c < candidates_.size(); ++c) {
      candidates_[c].compress_seconds =
          std::max(candidates_[c].compress_seconds, gathered_[r * candidates_.size() + c]);
    }
  }
  return {};
}

// --- an iteration ----------------------------------------------------------------------------------------------------

Status RatioChoice::next(std::uint32_t* codec) {
  if (!failed_.ok()) return failed_;
  if (under_way_) return bad("the iteration before has not been reported (canary_ratio_report)");
  if (done_ == 0) {
    if (Status s = guard([&] { return begin_batch(); }); !s.ok()) return fail(s);
  }
  under_way_ = true;
  *codec = candidate_of(step_.ratio).codec;
  return {};
}

Status RatioChoice::begin_batch() {
  step_ = controller_->next();
  if (step_.restore) {
    if (Status s = restore(); !s.ok()) return s;
  }
  if (step_.save) {
    if (Status s = save(); !s.ok()) return s;
  }
  return read_gain(&before_);
}

Status RatioChoice::report() {
  if (!failed_.ok()) return failed_;
  if (!under_way_) return bad("no iteration is under way (canary_ratio_next)");
  under_way_ = false;
  if (++done_ < options_.iterations) return {};
  done_ = 0;
  const Status s = guard([&] { return look(); });
  return s.ok() ? s : fail(s);
}

// Has all ranks see everybody's gain and links, and tells the controller.
Status RatioChoice::look() {
  Gain now_left;
  Status mine = read_gain(&now_left);
  if (mine.ok() && !now_left.sent && place_.shape.size > 1 && !asks_for_choice(candidates_.front().codec))
    mine = bad("tensor " + std::to_string(options_.tensor) + " was not sent by the codec that canary_ratio_next gave");
  // What the batch itself has sent: error feedback smooths over what was before, too.
  const double kept = before_.sent ? std::pow(1 - ErrorFeedback::kGainWeight, options_.iterations) : 0;
  const double gain =
      now_left.whole ? 1 : std::clamp((now_left.smoothed - kept * before_.smoothed) / (1 - kept), 0.0, 1.0);
  const LinkCost own = own_links();
  // Whoever can't go on says so, or the others would wait for it.
  constexpr std::size_t kWords = 4;
  if (Status s = all_gather(std::array<double, kWords>{mine.ok() ? 0.0 : 1.0, gain, own.alpha, own.beta}); !s.ok())
    return s;
  if (!mine.ok()) return mine;
  for (std::size_t r = 0; r < gathered_.size(); r += kWords) {
    if (gathered_[r] == 0) continue;
    return Status(CANARY_INVALID_ARGUMENT,
                  "rank " + std::to_string(r / kWords) + " could not tell its gain, as its own error says");
  }
  gain_ = 0;
  LinkCost now;
  for (std::size_t r = 0; r < gathered_.size(); r += kWords) {
    gain_ += gathered_[r + 1] / place_.shape.size;
    now.alpha = std::max(now.alpha, gathered_[r + 2]);
    now.beta = std::max(now.beta, gathered_[r + 3]);
  }
  const bool changed = moved(link_, now);
  const int choices = controller_->choices();
  const LinkCost before = std::exchange(link_, now);  // what sync_seconds() goes by
  controller_->report(gain_, candidate_of(step_.ratio).compress_seconds);
  if (controller_->choices() == choices && changed) controller_->network_changed();
  if (controller_->choices() == choices) link_ = before;
  return {};
}

// --- parts -----------------------------------------------------------------------------------------------------------

Status RatioChoice::save() {
  std::uint64_t needed = 0;
  const auto ask = [&](std::span<std::byte> room) {
    return run_command(*place_.context, place_.member,
                       [&](auto ticket) { return port::save_feedback(place_.member, room, &needed, ticket); });
  };
  Status s = ask({});
  feedback_.resize(needed);
  if (s.ok()) s = ask(feedback_);
  if (!s.ok()) return s.wrap("saving error feedback");
  options_.checkpoint(options_.user, CANARY_CHECKPOINT_SAVE);
  return {};
}

Status RatioChoice::restore() {
  const Status s = run_command(*place_.context, place_.member,
                               [&](auto ticket) { return port::restore_feedback(place_.member, feedback_, ticket); });
  if (!s.ok()) return s.wrap("restoring error feedback");
  options_.checkpoint(options_.user, CANARY_CHECKPOINT_RESTORE);
  return {};
}

Status RatioChoice::read_gain(Gain* gain) const {
  const auto ask = [&](const auto& make) { return run_command(*place_.context, place_.member, make); };
  port::FeedbackGain told;
  Status s = ask([&](auto ticket) { return port::feedback_gain(place_.member, options_.tensor, &told, ticket); });
  *gain = {.smoothed = told.gain, .sent = s.ok(), .whole = !s.ok() || told.residual_norm == 0};
  if (s.code() != CANARY_INVALID_ARGUMENT) return s;
  // Nothing is known of the tensor, or an operation is pending, which ends this as well.
  std::uint64_t size = 0;
  return ask([&](auto ticket) { return port::save_feedback(place_.member, {}, &size, ticket); });
}

double RatioChoice::sync_seconds(double ratio) const {
  TopkRequest request;
  request.ranks = place_.shape.size;
  request.bytes = static_cast<double>(options_.count) * sizeof(float);
  request.ratio = ratio;
  request.link = link_;
  request.root = by_variance_ ? TopkRoot::kVariance : TopkRoot::kStaleness;
  const auto takes = [&](TopkExchange exchange) { return topk_cost(exchange, request); };
  if (!ring_or_tree_) return takes(TopkExchange::kAllGather);
  const double least = std::min(takes(TopkExchange::kRing), takes(TopkExchange::kTree));
  return all_gather_ ? std::min(least, takes(TopkExchange::kAllGather)) : least;
}

// A peer is reached over all links to it at once; the slowest peer counts. Zero: it is not measured.
LinkCost RatioChoice::own_links() const {
  LinkCost slowest;
  place_.context->impl->with_engine([&](const Engine& engine) {
    std::uint32_t peer = 0;
    double alpha = 0, rate = 0;
    const auto count_peer = [&] {
      slowest.alpha = std::max(slowest.alpha, alpha);
      if (rate != 0) slowest.beta = std::max(slowest.beta, 1 / rate);
    };
    engine.for_each_link([&](const LinkView& view) {
      const Path& path = view.path;
      if (view.ended || path.spec.local_rail < 0 || path.link.sampled_at().count == 0) return;
      if (view.number != peer) {
        count_peer();
        peer = view.number;
        alpha = rate = 0;
      }
      alpha = alpha == 0 ? path.link.alpha().seconds() : std::min(alpha, path.link.alpha().seconds());
      rate += static_cast<double>(path.link.beta().count);
    });
    count_peer();
  });
  return slowest;
}

const RatioChoice::Candidate& RatioChoice::candidate_of(double ratio) const {
  return *std::find_if(candidates_.begin(), candidates_.end(), [&](const Candidate& c) { return c.ratio == ratio; });
}

Status RatioChoice::all_gather(std::span<const double> own) {
  gathered_.resize(own.size() * static_cast<std::size_t>(place_.shape.size));
  return place_.run({Collective::kAllGather, own.data(), gathered_.data(), own.size(), CANARY_F64});
}

Status RatioChoice::fail(const Status& why) {
  failed_ = why;
  return failed_;
}

void RatioChoice::read(canary_ratio_state* state) const {
  state->ratio = controller_->ratio();
  state->gain = gain_;
  state->alpha_seconds = link_.alpha;
  state->byte_seconds = link_.beta;
  state->explorations = static_cast<std::uint64_t>(controller_->explorations());
  state->choices = static_cast<std::uint64_t>(controller_->choices());
  state->exploring = controller_->exploring() ? 1 : 0;
  state->reserved = 0;
}

}  // namespace canarynet
