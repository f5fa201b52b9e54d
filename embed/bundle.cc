#include "embed/bundle.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "base/types.h"
#include "compress/codec_ask.h"
#include "embed/last_error.h"

namespace canarynet {
namespace {

constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 46;  // of all ranks, as the port has it

void mix(std::uint64_t* hash, std::uint64_t word) {
  *hash = (*hash ^ word) * 0x100000001b3ull;
  *hash ^= *hash >> 29;
}

bool measures(std::uint32_t policy) { return policy == CANARY_MERGE_EXACT || policy == CANARY_MERGE_MGWFBP; }

// What ranks compare at the creation, a word each.
enum Word : std::size_t { kTensors, kType, kRedop, kPolicy, kCodec, kTensor, kCounts, kGroups, kPlaces, kWords };

std::string text_of(Word word, std::int64_t value) {
  const auto number = static_cast<int>(value);
  switch (word) {
    case kTensors:
      return std::to_string(value) + " tensors";
    case kType:
      return std::string(name_of(static_cast<DataType>(number)));
    case kRedop:
      return std::string(name_of(static_cast<ReduceOp>(number)));
    case kPolicy:
      return "policy " + std::to_string(value);
    case kCodec:
      return value == 0 ? "no codec" : "codec " + text_asked(static_cast<std::uint32_t>(value));
    case kTensor:
      return value == 0 ? "no tensor in the error feedback" : "tensor " + std::to_string(value);
    default:
      return "";
  }
}

}  // namespace

// --- creation --------------------------------------------------------------------------------------------------------

Result<std::shared_ptr<Bundle>> Bundle::create(const GroupPlace& place, std::span<const canary_tensor> tensors,
                                               canary_type type, canary_redop redop,
                                               const canary_bundle_options& options) {
  const Terms terms{static_cast<canary_priority>(options.priority), options.codec, options.tensor, options.momentum};
  std::shared_ptr<Bundle> made(new Bundle(place, type, redop, terms));
  Bundle& b = *made;
  if (Status s = b.declare(tensors); !s.ok()) return s;
  if (Status s = b.check_codec(); !s.ok()) return s;
  std::vector<std::uint32_t> ends;
  if (Status s = b.choose_groups(options, &ends); !s.ok()) return s;
  if (Status s = b.agree(options, ends); !s.ok()) return s;
  if (b.terms_.tensor != 0) b.give_places();
  if (measures(options.policy)) {
    std::vector<std::uint64_t> bytes;
    for (const Tensor& t : b.tensors_) bytes.push_back(t.bytes);
    b.tuner_.emplace(std::move(bytes),
                     options.policy == CANARY_MERGE_EXACT ? MergePolicy::kExact : MergePolicy::kMgWfbp);
    ends.assign(b.tuner_->ends().begin(), b.tuner_->ends().end());
  }
  const std::size_t count = tensors.size();
  b.messages_.reserve(count);
  b.message_of_.resize(count);
  b.submitted_.resize(count);
  b.submitted_at_.resize(count);
  b.done_.reserve(count);
  b.lay_out(ends);
  if (b.may_need_staging()) {
    b.staging_ = std::make_unique_for_overwrite<std::byte[]>(b.bytes_);
    b.lay_out(ends);
  }
  // The context keeps as many operations from now on.
  std::vector<canary_op*> ops;
  for (std::size_t i = 0; i < b.messages_.size(); ++i) ops.push_back(place.context->take_op(place.member, false));
  for (canary_op* op : ops) place.context->give_op(op);
  return made;
}

Status Bundle::declare(std::span<const canary_tensor> tensors) {
  if (static_cast<int>(type_) < 0 || static_cast<int>(type_) >= kDataTypeCount)
    return bad("type " + std::to_string(static_cast<int>(type_)) + " is not a canary_type");
  if (static_cast<int>(redop_) < 0 || static_cast<int>(redop_) >= kReduceOpCount)
    return bad("redop " + std::to_string(static_cast<int>(redop_)) + " is not a canary_redop");
  element_ = size_of(type_);
  const std::uint64_t most = kBytesMax / static_cast<std::uint64_t>(place_.shape.size);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const canary_tensor& t = tensors[i];
    if (t.data == nullptr && t.count != 0) return bad("the data of tensor " + std::to_string(i) + " is NULL");
    if (t.count > (most - bytes_) / element_) return bad("tensor " + std::to_string(i) + " makes the bundle too large");
    const std::uint64_t bytes = t.count * element_;
    tensors_.push_back({static_cast<std::byte*>(t.data), t.count, bytes, bytes_});
    bytes_ += bytes;
    if (bytes != 0) by_address_.push_back(static_cast<std::uint32_t>(i));
  }
  std::sort(by_address_.begin(), by_address_.end(),
            [&](std::uint32_t a, std::uint32_t b) { return tensors_[a].data < tensors_[b].data; });
  for (std::size_t i = 1; i < by_address_.size(); ++i) {
    const Tensor &low = tensors_[by_address_[i - 1]], &high = tensors_[by_address_[i]];
    if (low.data + low.bytes <= high.data) continue;
    const auto [first, second] = std::minmax(by_address_[i - 1], by_address_[i]);
    return bad("tensors " + std::to_string(first) + " and " + std::to_string(second) + " overlap");
  }
  return {};
}

// Of the policies that do not measure.
Status Bundle::choose_groups(const canary_bundle_options& options, std::vector<std::uint32_t>* ends) {
  const std::size_t count = tensors_.size();
  if (options.policy != CANARY_MERGE_GIVEN && (options.ends != nullptr || options.groups != 0))
    return bad("groups are given, but the policy is not CANARY_MERGE_GIVEN");
  switch (options.policy) {
    case CANARY_MERGE_EXACT:
    case CANARY_MERGE_MGWFBP:
      return {};
    case CANARY_MERGE_WFBP:
      for (std::size_t i = 1; i <= count; ++i) ends->push_back(static_cast<std::uint32_t>(i));
      return {};
    case CANARY_MERGE_SYNCEASGD:
      ends->push_back(static_cast<std::uint32_t>(count));
      return {};
    case CANARY_MERGE_GIVEN:
      break;
    default:
      return bad("policy " + std::to_string(options.policy) + " is not a canary_merge");
  }
  if (options.ends == nullptr || options.groups == 0) return bad("CANARY_MERGE_GIVEN without groups");
  std::size_t before = 0;
  for (std::size_t g = 0; g < options.groups; ++g) {
    if (options.ends[g] <= before || options.ends[g] > count) {
      return bad("ends[" + std::to_string(g) + "] is " + std::to_string(options.ends[g]) + ": takes " +
                 std::to_string(before + 1) + " to " + std::to_string(count));
    }
    before = options.ends[g];
    ends->push_back(static_cast<std::uint32_t>(before));
  }
  if (before != count) {
    return bad("the last group ends at tensor " + std::to_string(before) + " of " + std::to_string(count));
  }
  return {};
}

// Nothing but their order and whether they touch: so groups that lie together do so on all ranks, in the same order.
std::uint64_t Bundle::hash_of_places() const {
  std::uint64_t hash = 1;
  const Tensor* before = nullptr;
  for (const std::uint32_t i : by_address_) {
    mix(&hash, i);
    mix(&hash, before != nullptr && before->data + before->bytes == tensors_[i].data ? 1 : 2);
    before = &tensors_[i];
  }
  return hash;
}

Status Bundle::agree(const canary_bundle_options& options, std::span<const std::uint32_t> given) {
  std::uint64_t counts = 1, groups = 1;
  for (const Tensor& t : tensors_) mix(&counts, t.count);
  for (const std::uint32_t end : given) mix(&groups, end);
  std::array<std::int64_t, kWords> own{};
  own[kTensors] = static_cast<std::int64_t>(tensors_.size());
  own[kType] = type_;
  own[kRedop] = redop_;
  own[kPolicy] = static_cast<std::int64_t>(options.policy);
  own[kCodec] = options.codec;
  own[kTensor] = static_cast<std::int64_t>(options.tensor);
  own[kCounts] = static_cast<std::int64_t>(counts);
  own[kGroups] = static_cast<std::int64_t>(groups);
  own[kPlaces] = static_cast<std::int64_t>(hash_of_places());
  std::vector<std::int64_t> all(kWords * static_cast<std::size_t>(place_.shape.size));
  if (Status s = all_gather(own, all); !s.ok()) return s;
  same_places_ = true;
  for (std::size_t rank = 1; rank * kWords < all.size(); ++rank) {
    const std::span theirs = std::span(all).subspan(rank * kWords, kWords);
    for (std::size_t w = 0; w < kPlaces; ++w) {
      if (theirs[w] == all[w]) continue;
      const std::string who = "ranks 0 and " + std::to_string(rank) + " declare different bundles: ";
      if (w == kCounts) return tensors_differ(static_cast<int>(rank));
      if (w == kGroups) return Status(CANARY_MISMATCH, who + "other groups");
      const auto word = static_cast<Word>(w);
      return Status(CANARY_MISMATCH, who + text_of(word, all[w]) + " and " + text_of(word, theirs[w]));
    }
    same_places_ = same_places_ && theirs[kPlaces] == all[kPlaces];
  }
  return {};
}

// Those of this rank and of rank 0, in as many tensors. All ranks come here.
Status Bundle::tensors_differ(int rank) {
  std::vector<std::int64_t> counts;
  for (const Tensor& t : tensors_) counts.push_back(static_cast<std::int64_t>(t.count));
  std::vector<std::int64_t> others = counts;
  if (Status s = from_rank_0(others); !s.ok()) return s;
  // The first one of this rank alone: others may differ elsewhere.
  std::int64_t first = std::mismatch(counts.begin(), counts.end(), others.begin()).first - counts.begin();
  if (place_.shape.rank != rank) first = static_cast<std::int64_t>(counts.size());
  if (Status s = all_reduce({&first, 1}, CANARY_MIN); !s.ok()) return s;
  std::vector<std::int64_t> all(static_cast<std::size_t>(place_.shape.size));
  if (Status s = all_gather({&counts[static_cast<std::size_t>(first)], 1}, all); !s.ok()) return s;
  return Status(CANARY_MISMATCH, "ranks 0 and " + std::to_string(rank) + " declare different bundles: tensor " +
                                     std::to_string(first) + " of " + std::to_string(all[0]) + " and " +
                                     std::to_string(all[static_cast<std::size_t>(rank)]) + " elements");
}

// --- groups in memory ------------------------------------------------------------------------------------------------

// Without a gap: in any order that all ranks have, else in that of their numbers; with error feedback in that of their
// places there.
bool Bundle::lies_together(const Message& m) const {
  const std::byte *low = nullptr, *high = nullptr;
  for (std::size_t i = m.first; i < m.end; ++i) {
    const Tensor& t = tensors_[i];
    if (t.bytes == 0) continue;
    if (low != nullptr && down_ && t.data + t.bytes != low) return false;
    const bool upwards = !same_places_ || (terms_.tensor != 0 && !down_);
    if (upwards && high != nullptr && high != t.data) return false;
    if (low == nullptr || t.data < low) low = t.data;
    if (high == nullptr || t.data + t.bytes > high) high = t.data + t.bytes;
  }
  return static_cast<std::uint64_t>(high - low) == m.count * element_;
}

void Bundle::lay_out(std::span<const std::uint32_t> ends) {
  messages_.clear();
  std::size_t first = 0;
  for (const std::uint32_t end : ends) {
    Message m;
    m.first = first;
    m.end = end;
    for (std::size_t i = first; i < end; ++i) {
      message_of_[i] = static_cast<std::uint32_t>(messages_.size());
      m.count += tensors_[i].count;
    }
    m.offset = tensors_[down_ ? end - 1 : first].offset;
    m.copied = !lies_together(m);
    if (m.copied) {
      if (staging_ != nullptr) m.data = staging_.get() + m.offset;
    } else {
      for (std::size_t i = first; i < end; ++i) {
        const Tensor& t = tensors_[i];
        if (t.bytes != 0 && (m.data == nullptr || t.data < m.data)) m.data = t.data;
      }
    }
    messages_.push_back(m);
    first = end;
  }
  done_.resize(messages_.size());
}

// Where groups may change, all that can come must lie together: so all tensors go up in memory, or all down.
bool Bundle::may_need_staging() const {
  if (!tuner_) return std::any_of(messages_.begin(), messages_.end(), [](const Message& m) { return m.copied; });
  return !lies_upwards() && !lies_downwards();
}

bool Bundle::lies_upwards() const {
  const Tensor* before = nullptr;
  for (const Tensor& t : tensors_) {
    if (t.bytes == 0) continue;
    if (before != nullptr && before->data + before->bytes != t.data) return false;
    before = &t;
  }
  return true;
}

bool Bundle::lies_downwards() const {
  const Tensor* before = nullptr;
  for (const Tensor& t : tensors_) {
    if (t.bytes == 0) continue;
    if (before != nullptr && t.data + t.bytes != before->data) return false;
    before = &t;
  }
  return same_places_;
}

// A tensor's place is the same on all ranks, whatever group it travels in.
void Bundle::give_places() {
  down_ = lies_downwards() && !lies_upwards();
  if (!down_) return;
  for (Tensor& t : tensors_) t.offset = bytes_ - t.offset - t.bytes;
}

OpRequest Bundle::request_for(std::byte* data, std::uint64_t count, std::uint64_t offset) const {
  OpRequest request{Collective::kAllReduce, data, data, count, type_, redop_};
  request.priority = terms_.priority;
  request.codec = terms_.codec;
  request.tensor = terms_.tensor;
  request.momentum = terms_.momentum;
  if (terms_.tensor == 0) return request;
  request.part_of = bytes_ / element_;
  request.part_begin = offset / element_;
  return request;
}

// Before anybody else hears of the bundle: as a message of all tensors would be checked.
Status Bundle::check_codec() {
  if (terms_.codec == 0 || bytes_ == 0) return {};
  std::byte* const data = tensors_[by_address_.front()].data;
  canary_op* const op = place_.context->take_op(place_.member, false);
  Status s = place_.context->impl->check_call(
      port::operation(place_.member, place_.shape, request_for(data, bytes_ / element_, 0), op->ticket.id()));
  place_.context->give_op(op);
  return s;
}

// --- an iteration ----------------------------------------------------------------------------------------------------

Status Bundle::submit(std::size_t tensor) {
  if (!failed_.ok()) return failed_;
  if (tensor >= tensors_.size()) {
    return bad("tensor " + std::to_string(tensor) + " of a bundle of " + std::to_string(tensors_.size()) +
               ": they count from 0");
  }
  if (submitted_[tensor] == iteration_) {
    return bad("tensor " + std::to_string(tensor) +
               " has been submitted in this iteration, which canary_bundle_wait ends");
  }
  submitted_at_[tensor] = place_.context->impl->now();
  if (began_.count == 0) began_ = submitted_at_[tensor];
  submitted_[tensor] = iteration_;
  const Tensor& t = tensors_[tensor];
  const Message& m = messages_[message_of_[tensor]];
  if (m.copied && t.bytes != 0) std::memcpy(staging_.get() + t.offset, t.data, t.bytes);
  while (ready_ < tensors_.size() && submitted_[ready_] == iteration_) {
    if (++ready_ != messages_[next_].end) continue;
    if (Status s = launch(messages_[next_++]); !s.ok()) return s;
  }
  return {};
}

Status Bundle::launch(Message& m) {
  m.launched = true;
  if (m.count == 0) return {};
  canary_context& context = *place_.context;
  canary_op* const op = context.take_op(place_.member, false);
  const OpRequest request = request_for(m.data, m.count, m.offset);
  const Status s = context.impl->submit(port::operation(place_.member, place_.shape, request, op->ticket.id()));
  if (!s.ok()) {
    context.give_op(op);
    return fail(s);
  }
  m.op = op;
  return {};
}

// Waits for it. The first time its result is here, it is told, and copied back.
Status Bundle::finish(Message& m) {
  canary_context& context = *place_.context;
  const auto index = static_cast<std::size_t>(&m - messages_.data());
  if (m.count == 0) done_[index] = began_;
  if (m.op == nullptr) return {};
  context.impl->wait(m.op->ticket);
  const Status s = result_of(*context.impl, m.op->ticket);
  done_[index] = m.op->ticket.done_at;
  context.give_op(std::exchange(m.op, nullptr));
  if (!s.ok()) {
    return s.wrap(m.end - m.first == 1 ? "tensor " + std::to_string(m.first)
                                       : "tensors " + std::to_string(m.first) + " to " + std::to_string(m.end - 1));
  }
  for (std::size_t i = m.first; m.copied && i < m.end; ++i) {
    const Tensor& t = tensors_[i];
    if (t.bytes != 0) std::memcpy(t.data, staging_.get() + t.offset, t.bytes);
  }
  return {};
}

Status Bundle::wait_tensor(std::size_t tensor) {
  if (!failed_.ok()) return failed_;
  if (tensor >= tensors_.size())
    return bad("tensor " + std::to_string(tensor) + " of a bundle of " + std::to_string(tensors_.size()));
  Message& m = messages_[message_of_[tensor]];
  if (!m.launched) {
    return bad("tensor " + std::to_string(tensor) + " is not under way: tensor " + std::to_string(ready_) +
               " has to be submitted first");
  }
  const Status s = finish(m);
  return s.ok() ? s : fail(s);
}

Status Bundle::wait() {
  if (!failed_.ok()) return failed_;
  if (ready_ != tensors_.size()) {
    const auto missing = std::count_if(submitted_.begin(), submitted_.end(), [&](auto i) { return i != iteration_; });
    return bad(std::to_string(missing) + " of " + std::to_string(tensors_.size()) +
               " tensors have not been submitted, the first of them is tensor " + std::to_string(ready_));
  }
  for (Message& m : messages_) {
    if (Status s = finish(m); !s.ok()) return fail(s);
  }
  return end_iteration();
}

void Bundle::drain() {
  for (Message& m : messages_) (void)finish(m);
}

Status Bundle::fail(const Status& why) {
  if (failed_.ok()) failed_ = why;
  drain();
  return failed_;
}

Status Bundle::end_iteration() {
  const auto then = tuner_ ? tuner_->end_iteration({began_, submitted_at_, done_}) : BundleTuner::Then::kGoOn;
  began_ = *std::max_element(done_.begin(), done_.end());
  ++iteration_;
  ready_ = next_ = 0;
  for (Message& m : messages_) m.launched = false;
  if (!tuner_) return {};
  if (Status s = follow(then); !s.ok()) return fail(s.wrap("the ranks of the bundle agree on groups"));
  if (tuner_->ends().size() != messages_.size() || then != BundleTuner::Then::kGoOn) lay_out(tuner_->ends());
  return {};
}

Status Bundle::follow(BundleTuner::Then then) {
  const bool plans = place_.shape.rank == 0;
  if (then == BundleTuner::Then::kPlan) {
    if (Status s = all_reduce(tuner_->report(), CANARY_MIN); !s.ok()) return s;
    if (plans) tuner_->make_plan();
    if (Status s = from_rank_0(tuner_->plan()); !s.ok()) return s;
    return tuner_->adopt();
  }
  if (then != BundleTuner::Then::kJudge) return {};
  if (plans) tuner_->judge();
  if (Status s = from_rank_0(tuner_->verdict()); !s.ok()) return s;
  tuner_->obey();
  return {};
}

// --- operations ------------------------------------------------------------------------------------------------------

Status Bundle::all_reduce(std::span<std::int64_t> words, canary_redop redop) {
  return place_.run({Collective::kAllReduce, words.data(), words.data(), words.size(), CANARY_I64, redop});
}

Status Bundle::from_rank_0(std::span<std::int64_t> words) {
  return place_.run({Collective::kBroadcast, words.data(), words.data(), words.size(), CANARY_I64, CANARY_SUM, 0});
}

Status Bundle::all_gather(std::span<const std::int64_t> own, std::span<std::int64_t> all) {
  return place_.run({Collective::kAllGather, own.data(), all.data(), own.size(), CANARY_I64});
}

void Bundle::read(canary_bundle_state* state, std::span<std::size_t> ends) const {
  state->iterations = iteration_ - 1;
  state->plans = tuner_ ? tuner_->plans() : 0;
  state->groups = messages_.size();
  state->copied_bytes = 0;
  state->staging_bytes = staging_ != nullptr ? bytes_ : 0;
  state->expected_seconds = tuner_ ? tuner_->expected_seconds() : 0;
  state->median_seconds = tuner_ ? tuner_->median_seconds() : 0;
  state->start_seconds = tuner_ ? tuner_->transfer_time().a : 0;
  state->byte_seconds = tuner_ ? tuner_->transfer_time().b : 0;
  for (const Message& m : messages_) state->copied_bytes += m.copied ? m.count * element_ : 0;
  for (std::size_t g = 0; g < std::min(ends.size(), messages_.size()); ++g) ends[g] = messages_[g].end;
}

}  // namespace canarynet
