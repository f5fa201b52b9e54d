// Operations with a codec: which codec and planner, error feedback, what is refused, pieces that decode to nothing.
// collectives/piece_coder.h encodes and decodes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "collectives/codec_pick.h"
#include "collectives/selector.h"
#include "compress/codec.h"
#include "compress/codec_ask.h"
#include "engine/engine.h"

namespace canarynet {

namespace {

// Matrices are worked on in one go, and the engine's thread moves nothing else meanwhile: a few seconds at most, since
// peers take who is silent for CANARY_SILENCE_LIMIT for dead. Sixty iterations of svd over elements x (directions and a
// few more), and power's products of elements x directions.
constexpr std::uint64_t kSvdWorkMax = std::uint64_t{1} << 26, kPowerWorkMax = std::uint64_t{1} << 32, kSvdMore = 8;

bool takes_too_long(const CodecSpec& spec, std::uint64_t elements) {
  if (spec.kind == CodecKind::kSvd) return elements * (spec.rank + kSvdMore) > kSvdWorkMax;
  return elements * spec.rank > kPowerWorkMax;
}

bool leaves_out_elements(const CodecSpec& spec) {
  return spec.kind == CodecKind::kArTopK || traits_of(spec).sparsifier;
}

}  // namespace

// A partial all-reduce has no phases, in whose numbers its ranks would have to agree, and no table of what was
// measured.
Status Engine::check_codec_of_partial(const port::Command& c) {
  if (c.numbers.region == 0) return {};
  const auto wrong = [&](const std::string& why) {
    return Status(CANARY_INVALID_ARGUMENT, "partial_all_reduce: codec " + text_asked(c.numbers.region) + why);
  };
  if (Status good = check_asked(c.numbers.region); !good.ok()) return good.wrap("partial_all_reduce");
  if (asks_for_choice(c.numbers.region)) return wrong(" is a choice, which only a group's all_reduce makes");
  const CodecSpec spec = codec_of_number(c.numbers.region).value();
  if (makes_chain(spec.kind))
    return wrong(" is only for a group's all_reduce: take one that encodes element by element");
  if (port::momentum_of(c) != 0 && !leaves_out_elements(spec)) return wrong(" has no use for momentum");
  return {};
}

Status Engine::check_codec(const port::Command& c) {
  const bool all_reduce =
      c.kind == port::Command::Kind::kOperation && static_cast<Collective>(c.collective) == Collective::kAllReduce;
  if (!all_reduce || c.numbers.region == 0) return {};
  const Status good = check_asked(c.numbers.region);
  if (!good.ok()) return Status(good).wrap("all_reduce");
  const auto spec = codec_of_number(c.numbers.region);
  if (port::momentum_of(c) != 0 && (!spec.ok() || !leaves_out_elements(spec.value()))) {
    return {CANARY_INVALID_ARGUMENT,
            "all_reduce: momentum is for codecs that leave out whole elements (artopk, agtopk, "
            "topk, lwtopk, mstopk, randomk), not for " +
                text_asked(c.numbers.region)};
  }
  const auto named = codec_named(c.numbers.region);
  // The text is made where it is needed: the data path allocates nothing.
  const auto wrong = [&](const std::string& why) {
    return Status(CANARY_INVALID_ARGUMENT, "all_reduce: codec " + text_asked(c.numbers.region) + why);
  };
  const std::uint64_t rows = port::rows_of(c);
  const bool shaped = named.ok() && needs_shape(named.value().kind);
  if (shaped && rows == 0 && c.count != 0)
    return wrong(" needs the shape of a matrix: give its rows in canary_op_options.rows, or take a codec without one");
  if (!shaped && rows != 0) return wrong(" has no use for rows: power and svd have");
  if (!named.ok() || !makes_chain(named.value().kind)) return {};
  if (!shaped && named.value().or_dense && port::tensor_of(c) == 0)
    return wrong(" needs a tensor: without one, what was to travel dense is gone by then");
  if (c.count > kSegmentElementsMax) {
    return wrong(" takes at most " + std::to_string(kSegmentElementsMax) + " elements, not " + std::to_string(c.count));
  }
  if (!shaped || c.count == 0) return {};
  const Status fits = check(Coding{named.value(), {.count = c.count, .rows = rows, .columns = c.count / rows}});
  if (!fits.ok()) return Status(fits).wrap("all_reduce");
  if (!takes_too_long(named.value(), c.count)) return {};
  return wrong(" of " + std::to_string(c.count) + " elements would hold up everything else for too long: take " +
               (named.value().kind == CodecKind::kSvd ? "power, or fewer directions" : "fewer directions"));
}

// Nothing travels where a rank is alone, so nothing is lost either.
CodecSpec Engine::codec_of(const GroupMember& m, const OpRequest& r, const MeasuredTable& table) {
  if (r.codec == 0 || m.group->members.size() == 1) return {};
  const CodecSpec spec = asks_for_choice(r.codec)
                             ? candidates_of(r.codec).specs[CodecUse::chosen(table, r.codec, r.count * sizeof(float))]
                             : codec_of_number(r.codec).value();
  return makes_chain(spec.kind) ? CodecSpec() : spec;  // it has no elements here, or would be a chain
}

CodecSpeed Engine::codec_speed(const CodecSpec& spec) {
  for (const auto& [of, speed] : codec_speeds_) {
    if (of == spec) return speed;
  }
  codec_speeds_.emplace_back(spec, options_.codec_speed ? options_.codec_speed(spec) : CodecSpeed());
  return codec_speeds_.back().second;
}

// The candidate that an operation of this number takes, of those that it asks for: the same on all ranks.
std::size_t Engine::chosen_candidate(const GroupMember& m, const OpRequest& r, std::uint32_t number) {
  const DecisionFlow* const decisions = m.group->decisions.get();
  if (decisions == nullptr) return 0;
  return CodecUse::chosen(decisions->table_for(number), r.codec, r.count * sizeof(float));
}

// Where operations that ask for this choice are noted. nullptr: there is none, and they stay dense for good, where no
// plan that may run takes codecs. (artopk and agtopk run by any plan.)
CodecUse::Cell* Engine::cell_of_asked(GroupMember& m, const OpRequest& r) {
  Group& g = *m.group;
  const std::uint64_t bytes = r.count * sizeof(float);
  CodecUse::Cell* cell = g.codec_use.find(r.codec, bytes);
  if (cell == nullptr) {
    PlanRequest request = plan_request(g);
    request.count = r.count;
    request.element_bytes = sizeof(float);
    if (bytes == 0 || (!is_chain(m, r) && !select_coded_planner(request, decisions_).ok())) return nullptr;
    cell = g.codec_use.add(r.codec, bytes);
    if (cell == nullptr) return nullptr;
    if (g.decisions) {
      g.decisions->note_new_class();
      decisions_due_ = Nanos{};
    }
  }
  cell->bytes = bytes;
  cell->feedback = r.tensor != 0;
  return cell;
}

// Notes an entered operation whose codec is chosen.
void Engine::note_asked(GroupMember& m, Operation& op) {
  if (!asks_for_choice(op.request.codec) || m.group->members.size() == 1) return;
  op.asked = cell_of_asked(m, op.request);
  if (op.asked != nullptr) op.candidate = chosen_candidate(m, op.request, op.number);
}

// A number has one time, and that of a chosen chain's first one is the call's.
bool Engine::tells_time_of_call(const GroupMember& m, const Operation& op) {
  return op.chained && m.chain->choice().cell != nullptr && op.number == m.chain->number();
}

// Of a complete operation, for those who choose the next one's planner or codec.
void Engine::note_time(GroupMember& m, const Operation& op) {
  const ProgramEntry& ran = *op.entry;
  const Nanos time = now_ - op.entered;
  ChoiceUse::Took* slowest = nullptr;  // where the slowest rank's time is noted
  bool told = op.asked != nullptr;
  if (ran.use != nullptr) {
    const bool smaller =
        !ran.program.coded() && ran.program.piece_bytes < static_cast<std::uint32_t>(roster_->piece_bytes.count);
    ChoiceUse::Took& took =
        ran.use->took[static_cast<std::size_t>(ran.program.planner)][variant_of(smaller, !ran.ring_order.empty())];
    took.note(time);
    const bool measured =
        (ran.carries != 0 ? ran.use->measured : options_.settings.measured_choice) && !tells_time_of_call(m, op);
    told |= measured;
    // Times of operations of several sizes are not compared.
    const DecisionFlow* const decisions = m.group->decisions.get();
    const bool kept = decisions == nullptr || decisions->keeps_times_of(ran.ring_order);
    if (measured && ran.bytes == ran.use->usual_bytes && kept) slowest = &took;
  }
  if (op.asked != nullptr) {
    slowest = &op.asked->took[op.candidate];
    slowest->note(time);
  }
  if (told && m.group->decisions) m.group->decisions->note_time(op.number, time, slowest);
}

// Whether what was measured may choose the plan of an operation with a codec, or of a chain's values. Whoever lets
// artopk be chosen against agtopk asks for that. Times of a session's rounds tell of who joins, not of plans.
bool Engine::measures_plan(const GroupMember& m, const OpRequest& r) const {
  if (!m.group->decisions || m.session != nullptr) return false;
  return options_.settings.measured_choice || (r.carries != 0 && asks_for_choice(m.chain->called().request.codec));
}

// Where operations are noted that carry what this codec makes. `codec`: of encoded pieces, else none. nullptr: there
// are too many kinds.
ChoiceUse::Cell* Engine::coded_use(GroupMember& m, const OpRequest& r, const CodecSpec& codec, std::uint32_t number,
                                   const PlanRequest& plan) {
  const std::uint64_t bytes = operation_bytes(plan);
  ChoiceUse::Cell* const use = m.group->use.coded_cell(number, bytes);
  if (use == nullptr) return nullptr;
  if (!use->measured && measures_plan(m, r)) {
    use->measured = true;
    use->static_known = false;  // so that it is asked for, and a table with it
  }
  use->called_bytes = r.carries != 0 ? m.chain->value_bytes() : bytes;
  if (codec.kind == CodecKind::kDense) return use;
  const auto job_piece = static_cast<std::uint32_t>(roster_->piece_bytes.count);
  use->encoding.piece_bytes = coded_piece_bytes(codec, job_piece, bytes / static_cast<std::uint64_t>(plan.ranks));
  use->encoding.share = wire_share(codec, bytes, plan.ranks, job_piece);
  use->encoding.feedback = r.tensor != 0;
  return use;
}

// Allocates at a tensor's first use. Where the tensor has another length in this rank's state, the group ends: the
// others may know nothing of that and would wait.
Status Engine::begin_feedback(GroupMember& m, const CalledOperation& called, const Program& program,
                              ErrorFeedback::Exchange* begun) {
  const OpRequest& r = called.request;
  if (r.tensor == 0) {
    if (program.coded()) begun->left_out = called.left_out;
    return {};
  }
  if (!program.coded() && !feedback_of(m).leaves(r.tensor)) return {};
  ErrorFeedback& kept = feedback_of(m);
  if (Status known = kept.prepare(r.tensor, tensor_elements(r)); !known.ok()) {
    Verdict v;
    v.code = known.code();
    v.rank = m.world_rank;
    v.op = m.entered;
    v.text = rank_name(m.world_rank) + ": " + known.text();
    kill(*m.group, v, true);
    return known;
  }
  if (program.coded()) {
    *begun = kept.begin(r.tensor, static_cast<const float*>(r.input), r.momentum, part_of_tensor(r));
  } else {
    begun->residual = kept.residual(r.tensor, part_of_tensor(r));
  }
  return {};
}

void Engine::bind(GroupMember& m, Operation& op, const ErrorFeedback::Exchange& feedback, bool null_pieces) const {
  const OpRequest& r = op.request;
  if (!op.entry->program.coded() && !feedback.residual.empty()) {
    // What a codec has left out before travels with this one.
    const float* const input = static_cast<const float*>(r.input);
    float* const output = static_cast<float*>(r.output);
    for (std::uint64_t i = 0; i < r.count; ++i) output[i] = input[i] + feedback.residual[i];
    op.run->executor.bind(output, output, r.type, r.redop, nullptr, null_pieces);
    return;
  }
  const CodedCall coded{static_cast<std::uint32_t>(m.world_rank), op.number, feedback.residual, feedback.left_out,
                        static_cast<std::uint32_t>(roster_->engine_of.size())};
  op.run->executor.bind(r.input, r.output, r.type, r.redop, op.entry->program.coded() ? &coded : nullptr, null_pieces);
}

// The result of a complete operation, with a codec or without. Where an element was refused, all ranks hear of the same
// one, and residuals stay as they were.
Status Engine::end_coded(GroupMember& m, const Operation& op) {
  if (!op.entry->program.coded()) {
    if (op.request.tensor != 0 && feedback_of(m).leaves(op.request.tensor))
      feedback_of(m).commit_all_sent(op.request.tensor, part_of_tensor(op.request));
    return {};
  }
  const PieceCoder& coder = *op.run->executor.coder();
  const Refusal refusal = coder.refusal();
  const std::uint64_t tensor = op.request.tensor;
  if (refusal.there()) {
    ErrorDetail d;
    d.rank = static_cast<int>(refusal.rank);
    d.op = op.number;
    d.op_name = std::string(name_of(op.request.collective));
    d.group = m.group->flow;
    d.phase = "exchange";
    d.elapsed = now_ - op.entered;
    const std::string of = tensor != 0 ? "tensor " + std::to_string(tensor) + ", " : "";
    Refusal in_tensor = refusal;
    in_tensor.element += op.request.part_begin;
    return Status(CANARY_INVALID_ARGUMENT,
                  d.op_name + " #" + std::to_string(op.number) + ": " + of + coder.text_of(in_tensor), d);
  }
  const PieceCoder::Totals& t = coder.totals();
  if (op.chained) {  // of whose values the chain tells
    m.chain->note_encoded(t.encoded_bytes);
    return {};
  }
  codec_value_bytes_ += t.value_bytes;
  codec_encoded_bytes_ += t.encoded_bytes;
  if (tensor != 0) feedback_of(m).commit(tensor, t.sent_energy, t.energy, t.left_energy, part_of_tensor(op.request));
  return {};
}

void Engine::count_codecs(Counters* out) const {
  out->codec_value_bytes = codec_value_bytes_;
  out->codec_encoded_bytes = codec_encoded_bytes_;
  double sent = 0, energy = 0, left = 0;
  for (const auto& g : groups_) {
    for (const auto& m : g->local) {
      sent += m->feedback.sent_energy();
      energy += m->feedback.energy();
      left += m->feedback.left_energy();
    }
  }
  if (energy <= 0) return;
  out->codec_gain = sent / energy;
  out->codec_residual = std::sqrt(std::max(0.0, left) / energy);
}

// Saves, restores or tells a member's state between its operations.
void Engine::obey_feedback(GroupMember* m, const port::Command& c) {
  OpTicket* const ticket = tickets_->at(c.ticket.place);
  if (ticket == nullptr) return;
  if (m == nullptr) return ticket->finish(Status(CANARY_CLOSED, "error feedback: the group has been destroyed"));
  if (!m->operations.empty() || m->chains() || m->waiting.claimed() != m->waiting.taken() || partial_pending(*m)) {
    return ticket->finish(
        Status(CANARY_INVALID_ARGUMENT, "error feedback: operations of the group are pending, and may change it"));
  }
  try {
    ticket->finish(c.kind == port::Command::Kind::kTopKRoots ? tell_roots(*m, c) : serve_feedback(m->feedback, c));
  } catch (const std::bad_alloc&) {
    ticket->finish(Status(CANARY_LIMIT, "error feedback: there is no memory left"));
  }
}

Status Engine::tell_roots(const GroupMember& m, const port::Command& c) const {
  std::byte* const to = regions_.at(c.output);
  std::fill_n(to, c.count * sizeof(std::uint64_t), std::byte{});
  if (!m.top_k) return {};
  const std::span<const std::uint64_t> counts = m.top_k->roots().counts();
  std::memcpy(to, counts.data(), std::min<std::size_t>(counts.size(), c.count) * sizeof(std::uint64_t));
  return {};
}

Status Engine::serve_feedback(ErrorFeedback& feedback, const port::Command& c) const {
  if (c.kind == port::Command::Kind::kRestoreFeedback)
    return feedback.restore({reinterpret_cast<const std::uint8_t*>(regions_.at(c.input)), c.input.bytes});
  if (c.kind == port::Command::Kind::kFeedbackGain) {
    if (c.count != 0 && !feedback.knows(c.count))
      return Status(CANARY_INVALID_ARGUMENT, "error feedback: nothing is known of tensor " + std::to_string(c.count));
    const port::FeedbackGain told = c.count != 0
                                        ? port::FeedbackGain{feedback.gain(c.count), feedback.residual_norm(c.count)}
                                        : port::FeedbackGain{feedback.gain(), feedback.residual_norm()};
    std::memcpy(regions_.at(c.output), &told, sizeof told);
    return {};
  }
  const std::uint64_t size = feedback.saved_bytes();
  std::memcpy(regions_.at(c.numbers), &size, sizeof size);
  if (c.output.nowhere()) return {};
  if (c.output.bytes < size) {
    return Status(CANARY_LIMIT,
                  "error feedback: " + std::to_string(c.output.bytes) + " bytes of room for " + std::to_string(size));
  }
  const std::vector<std::uint8_t> bytes = feedback.save();
  std::memcpy(regions_.at(c.output), bytes.data(), bytes.size());
  return {};
}

// A peer's piece was whole and valid, and no encoder can have made it. False: there was none.
bool Engine::kill_of_fault(Run& run) {
  if (run.member == nullptr || run.executor.fault().ok()) return false;
  Group& g = *run.member->group;
  Verdict v;
  v.code = run.executor.fault().code();
  v.rank = g.members[static_cast<std::size_t>(run.executor.fault_of())];
  v.op = run.number;
  v.text = "operation #" + std::to_string(run.number) + " of group " + std::to_string(g.flow) + ": rank " +
           std::to_string(v.rank) + " sent a piece that does not decode: " + run.executor.fault().text();
  kill(g, v, true);
  return true;
}

}  // namespace canarynet
