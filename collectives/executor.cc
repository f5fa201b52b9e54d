#include "collectives/executor.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/check.h"
#include "collectives/null_piece.h"
#include "kernels/crc32c.h"

namespace canarynet {
namespace {

constexpr std::uint64_t pack(std::uint32_t step, std::uint32_t piece) { return std::uint64_t{step} << 32 | piece; }

}  // namespace

// Pages of the staging come with the first early arrival, which usually never happens.
Executor::Executor(const Program& program)
    : program_(program),
      staging_(program.coded() ? 0 : program.staging_bytes),
      scratch_(program.scratch_bytes),
      coder_(program.coded() ? std::make_unique<PieceCoder>(program) : nullptr) {
  const std::size_t bytes = lay_out(nullptr);
  block_ = std::make_unique<std::byte[]>(bytes);
  lay_out(block_.get());
}

// Gives every array its part of the block, the widest elements first, and returns the block's length.
std::size_t Executor::lay_out(std::byte* block) {
  std::size_t bytes = 0;
  const auto part = [&]<typename T>(T*& array, std::size_t count) {
    CANARY_CHECK(bytes % alignof(T) == 0, "an array would not be aligned");
    if (block != nullptr) {
      array = reinterpret_cast<T*>(block + bytes);
      std::uninitialized_value_construct_n(array, count);
    }
    bytes += count * sizeof(T);
  };
  const std::size_t tasks = program_.tasks, peers = program_.peers.size(), pieces = program_.piece_offset.size() - 1;
  std::size_t sends = 0;
  for (const ProgramPeer& peer : program_.peers) sends += peer.send_tasks;
  part(ready_, sends);
  part(work_.items, tasks);
  for (auto** crcs : {&input_crc_, &output_crc_}) part(*crcs, pieces);
  for (auto** numbers : {&ready_head_, &ready_tail_, &missing_, &unacked_, &woken_.items}) part(*numbers, peers);
  part(pending_, tasks);
  part(flags_, tasks);
  part(woken_flag_, peers);
  return bytes;
}

void Executor::bind(const void* input, void* output, DataType type, ReduceOp op, const CodedCall* coded,
                    bool null_pieces) {
  CANARY_CHECK((coder_ != nullptr) == (coded != nullptr), "only programs with a codec take its arguments");
  fault_ = Status();
  if (coder_) {
    // In place from here on: what is sent is the input with what was left out of earlier ones.
    coder_->begin(*coded, null_pieces);
    coder_->take_input(static_cast<const float*>(input), static_cast<float*>(output), program_.count);
    input = output;
  }
  base_[static_cast<std::size_t>(Buffer::kInput)] = static_cast<std::byte*>(const_cast<void*>(input));  // only read
  base_[static_cast<std::size_t>(Buffer::kOutput)] = static_cast<std::byte*>(output);
  base_[static_cast<std::size_t>(Buffer::kScratch)] = scratch_.begin();
  type_ = type;
  average_ = op == CANARY_AVG;
  takes_null_pieces_ = !reduces(program_.collective) || op == CANARY_SUM || op == CANARY_AVG;
  sends_null_pieces_ = null_pieces && takes_null_pieces_;
  reduce_ = reduce_kernel(type, average_ ? CANARY_SUM : op);
  const std::size_t pieces = program_.piece_offset.size() - 1;
  std::copy(program_.pending.begin(), program_.pending.end(), pending_);
  std::fill_n(flags_, program_.tasks, std::uint8_t{0});
  std::fill_n(input_crc_, pieces, std::nullopt);
  std::fill_n(output_crc_, pieces, std::nullopt);
  for (std::size_t s = 0; s < program_.peers.size(); ++s) {
    ready_head_[s] = ready_tail_[s] = program_.peers[s].ready_begin;
    missing_[s] = program_.peers[s].receive_tasks;
    unacked_[s] = program_.peers[s].send_tasks;
    woken_flag_[s] = 0;
  }
  woken_.size = work_.size = 0;
  applied_.clear();
  remaining_ = program_.tasks;
  for (std::uint32_t i = 0; i < program_.steps.size(); ++i) {
    const ProgramStep& s = program_.steps[i];
    if (s.kind == StepKind::kReceive || s.kind == StepKind::kReceiveReduce) continue;
    for (std::uint32_t c = s.piece_begin; c < s.piece_end; ++c) {
      // The program is asked, not pending_: copies that run here release other tasks, which drain() then activates.
      if (program_.pending[s.task_begin + c - s.piece_begin] == 0) activate(i, c);
    }
  }
  drain();
}

Executor::ReadyPiece Executor::peek_send(std::uint32_t peer) const {
  const std::uint64_t packed = ready_[ready_head_[peer]];
  const ProgramStep& s = program_.steps[packed >> 32];
  const auto piece = static_cast<std::uint32_t>(packed);
  const std::uint32_t task = s.task_begin + piece - s.piece_begin;
  if (coder_) {
    const auto encoded = coder_->to_send(task, piece, reinterpret_cast<const float*>(at(s.src, piece)));
    return {&s, piece, encoded.data, encoded.bytes, task, encoded.null};
  }
  const std::byte* const values = at(s.src, piece);
  const bool null = sends_null_pieces_ && all_zero(values, program_.bytes_of(piece));
  return {&s, piece, values, null ? 0 : program_.bytes_of(piece), task, null};
}

std::uint32_t Executor::crc_of(const ReadyPiece& send) {
  if (coder_) return coder_->crc_of(send.task);
  if (send.null) return 0;
  if (send.step->src == Buffer::kScratch) return crc32c(0, send.data, send.bytes);
  std::optional<std::uint32_t>& known = (send.step->src == Buffer::kInput ? input_crc_ : output_crc_)[send.piece];
  if (!known) known = crc32c(0, send.data, send.bytes);
  return *known;
}

void Executor::sent(std::uint32_t task) {
  if (flags_[task] & kDone) return;
  const std::uint32_t step = program_.step_of_task[task];
  const ProgramStep& s = program_.steps[step];
  --unacked_[s.peer_index];
  finish_task(step, s.piece_begin + task - s.task_begin);
  drain();
}

std::byte* Executor::staging_at(const ProgramStep& step, std::uint32_t piece) const {
  if (coder_) return coder_->slot(step.task_begin + piece - step.piece_begin);
  return staging_.begin() + step.staging + (program_.piece_offset[piece] - program_.piece_offset[step.piece_begin]);
}

const ProgramStep* Executor::find(int source, std::uint16_t tag, std::uint32_t piece_in_step) const {
  const ProgramStep* s = program_.receive_step(source, tag);
  return s != nullptr && piece_in_step < s->piece_end - s->piece_begin ? s : nullptr;
}

Executor::Place Executor::place_for(int source, std::uint16_t tag, std::uint32_t piece_in_step, std::uint32_t bytes) {
  const ProgramStep* s = find(source, tag, piece_in_step);
  if (s == nullptr) return {};
  const std::uint32_t piece = s->piece_begin + piece_in_step, task = s->task_begin + piece_in_step;
  if (!has_length(piece, bytes)) return {};
  if (flags_[task] & kArrived) return {PlaceKind::kDuplicate, nullptr, task};
  if (is_null(piece, bytes)) return {PlaceKind::kSlot, nullptr, task};  // nothing of it lands
  if (flags_[task] & kLanding) return {PlaceKind::kSlot, nullptr, task};
  if (pending_[task] != 0) {
    flags_[task] |= kLanding;
    return {PlaceKind::kSpan, staging_at(*s, piece), task};
  }
  // The piece's turn has come: a copy lands in place, a reduction in the lane's cache-sized slot.
  if (s->kind == StepKind::kReceive) {
    flags_[task] |= kLanding;
    return {PlaceKind::kSpan, coder_ ? coder_->slot(task) : at(s->dst, piece), task};
  }
  return {PlaceKind::kSlot, nullptr, task};
}

bool Executor::fits(int source, std::uint16_t tag, std::uint32_t piece_in_step, std::uint32_t bytes,
                    std::uint32_t* task) const {
  const ProgramStep* s = find(source, tag, piece_in_step);
  if (s == nullptr || !has_length(s->piece_begin + piece_in_step, bytes)) return false;
  *task = s->task_begin + piece_in_step;
  return true;
}

void Executor::landing_lost(std::uint32_t task) { flags_[task] &= static_cast<std::uint8_t>(~kLanding); }

bool Executor::arrived(std::uint32_t task, std::span<const std::byte> payload, bool* other_landing,
                       std::optional<std::uint32_t> crc) {
  *other_landing = false;
  const ProgramStep* s = &program_.steps[program_.step_of_task[task]];
  const std::uint32_t piece = s->piece_begin + (task - s->task_begin);
  std::byte* const staged = staging_at(*s, piece);
  const bool in_place = !coder_ && s->kind == StepKind::kReceive && payload.data() == at(s->dst, piece);
  const bool null = is_null(piece, payload.size());
  if (flags_[task] & kArrived) return false;
  *other_landing = (flags_[task] & kLanding) != 0 && (null || (payload.data() != staged && !in_place));
  flags_[task] = static_cast<std::uint8_t>((flags_[task] | kArrived) & ~kLanding);
  --missing_[s->peer_index];
  if (pending_[task] != 0) {
    if (payload.data() != staged && !payload.empty()) std::memcpy(staged, payload.data(), payload.size());
    if (coder_) coder_->note(task, static_cast<std::uint32_t>(payload.size()));
    flags_[task] |= kStaged;
    if (null) flags_[task] |= kNull;
    return true;
  }
  apply_and_finish(program_.step_of_task[task], piece, payload, crc);
  drain();
  return true;
}

void Executor::expect_neighbours() {
  offers_.resize(program_.tasks);
  applied_.reserve(program_.tasks);
}

bool Executor::offer(int source, std::uint16_t tag, std::uint32_t piece_in_step, const std::byte* payload,
                     std::uint32_t bytes, Sender sender) {
  const ProgramStep* s = find(source, tag, piece_in_step);
  CANARY_CHECK(s != nullptr && has_length(s->piece_begin + piece_in_step, bytes), "local plans disagree");
  const std::uint32_t piece = s->piece_begin + piece_in_step, task = s->task_begin + piece_in_step;
  CANARY_CHECK((flags_[task] & kArrived) == 0, "a neighbour's piece came twice");
  flags_[task] |= kArrived;
  --missing_[s->peer_index];
  if (pending_[task] != 0) {
    flags_[task] |= kOffered;
    offers_[task] = {{payload, bytes}, sender};
    return false;
  }
  apply_and_finish(program_.step_of_task[task], piece, {payload, bytes}, std::nullopt);
  drain();
  return true;
}

bool Executor::next_applied(Sender* sender) {
  if (applied_.empty()) return false;
  *sender = applied_.back();
  applied_.pop_back();
  return true;
}

void Executor::apply_and_finish(std::uint32_t step, std::uint32_t piece, std::span<const std::byte> payload,
                                std::optional<std::uint32_t> crc) {
  if (apply(program_.steps[step], piece, payload, crc)) finish_task(step, piece);
}

bool Executor::apply(const ProgramStep& step, std::uint32_t piece, std::span<const std::byte> payload,
                     std::optional<std::uint32_t> crc) {
  const bool null = is_null(piece, payload.size());
  if (coder_ && step.peer >= 0) {
    if (!apply_encoded(step, piece, payload, crc)) return false;
  } else if (null) {
    apply_null(step, piece);
  } else {
    apply_values(step, piece, payload.data());
  }
  const bool divides = step.finish && average_;
  const std::uint32_t elements = program_.bytes_of(piece) / program_.element_bytes;
  std::byte* const dst = at(step.dst, piece);
  if (divides) divide(type_, dst, elements, static_cast<std::uint32_t>(program_.ranks));
  if (coder_ && step.finish) {
    const float weight = average_ ? static_cast<float>(program_.ranks) : 1;
    coder_->complete(step.task_begin + piece - step.piece_begin, piece, reinterpret_cast<float*>(dst), weight);
  }
  if (step.dst == Buffer::kOutput) {
    input_crc_[piece].reset();  // the input may be the same memory
    output_crc_[piece] = step.kind != StepKind::kReceive || divides || null ? std::nullopt : crc;
  }
  return true;
}

void Executor::apply_values(const ProgramStep& step, std::uint32_t piece, const std::byte* payload) {
  const std::uint32_t bytes = program_.bytes_of(piece);
  const std::uint32_t elements = bytes / program_.element_bytes;
  std::byte* dst = at(step.dst, piece);
  if (step.kind == StepKind::kReceiveReduce) {
    reduce_(dst, at(step.src, piece), payload, elements);
  } else if (step.kind == StepKind::kReduce) {
    reduce_(dst, dst, payload, elements);
  } else if (dst != payload) {
    std::memcpy(dst, payload, bytes);
  }
}

// A sum takes zeros as if they had come: it must not keep a -0.0 that is 0.0 on a rank which has added it to zeros.
void Executor::apply_null(const ProgramStep& step, std::uint32_t piece) {
  const std::uint32_t bytes = program_.bytes_of(piece);
  std::byte* const dst = at(step.dst, piece);
  if (step.kind == StepKind::kReceive) {
    std::memset(dst, 0, bytes);
    return;
  }
  const std::byte* const src = at(step.src, piece);
  for (std::size_t done = 0; done < bytes; done += kZeroBlock) {
    const std::size_t block = std::min<std::size_t>(kZeroBlock, bytes - done);
    reduce_(dst + done, src + done, kZeros, block / program_.element_bytes);
  }
}

// What came whole stays in its slot, from where it is handed on. Everything is decoded there: a payload may lie in a
// ring that its sender can still write, and a decoder looks at an index twice.
bool Executor::apply_encoded(const ProgramStep& step, std::uint32_t piece, std::span<const std::byte> payload,
                             std::optional<std::uint32_t> crc) {
  const std::uint32_t task = step.task_begin + piece - step.piece_begin;
  auto* const dst = reinterpret_cast<float*>(at(step.dst, piece));
  if (payload.data() != coder_->slot(task)) std::memcpy(coder_->slot(task), payload.data(), payload.size());
  payload = {coder_->slot(task), payload.size()};
  Status decoded;
  if (step.kind == StepKind::kReceiveReduce) {
    const std::byte* const src = at(step.src, piece);
    if (src != at(step.dst, piece)) std::memcpy(dst, src, program_.bytes_of(piece));
    decoded = coder_->add(piece, payload, dst);
  } else {
    coder_->note(task, static_cast<std::uint32_t>(payload.size()));
    coder_->note_crc(task, crc);
    decoded = coder_->replace(piece, payload, dst);
  }
  if (decoded.ok()) return true;
  if (fault_.ok()) {
    fault_ = std::move(decoded);
    fault_of_ = step.peer;
  }
  return false;
}

// Called when all dependencies of (step, piece) are done.
void Executor::activate(std::uint32_t step, std::uint32_t piece) {
  const ProgramStep& s = program_.steps[step];
  switch (s.kind) {
    case StepKind::kSend:
      ready_[ready_tail_[s.peer_index]++] = pack(step, piece);
      if (!woken_flag_[s.peer_index]) {
        woken_flag_[s.peer_index] = 1;
        woken_.push(s.peer_index);
      }
      break;
    case StepKind::kCopy:
    case StepKind::kReduce:
      apply_and_finish(step, piece, {at(s.src, piece), program_.bytes_of(piece)}, std::nullopt);
      break;
    case StepKind::kReceive:
    case StepKind::kReceiveReduce:
      if (const std::uint32_t task = s.task_begin + piece - s.piece_begin; (flags_[task] & kStaged) != 0) {
        const std::size_t bytes = (flags_[task] & kNull) != 0 ? 0 : program_.bytes_of(piece);
        apply_and_finish(step, piece,
                         coder_ ? coder_->in_slot(task) : std::span<const std::byte>(staging_at(s, piece), bytes),
                         std::nullopt);
      } else if ((flags_[task] & kOffered) != 0) {
        apply_and_finish(step, piece, offers_[task].data, std::nullopt);
        applied_.push_back(offers_[task].sender);
      }
      break;
  }
}

void Executor::finish_task(std::uint32_t step, std::uint32_t piece) {
  const ProgramStep& s = program_.steps[step];
  flags_[s.task_begin + piece - s.piece_begin] |= kDone;
  --remaining_;
  if (s.dependents_begin != s.dependents_end) work_.push(pack(step, piece));
}

// Uses a list instead of recursion: a staged chain may be as long as the group has ranks.
void Executor::drain() {
  while (!work_.empty()) {
    const std::uint64_t packed = work_.pop();
    const ProgramStep& s = program_.steps[packed >> 32];
    const auto piece = static_cast<std::uint32_t>(packed);
    for (std::uint32_t d = s.dependents_begin; d != s.dependents_end; ++d) {
      const std::uint32_t step = program_.dependents[d];
      const ProgramStep& waiting = program_.steps[step];
      if (piece < waiting.piece_begin || piece >= waiting.piece_end) continue;
      if (--pending_[waiting.task_begin + piece - waiting.piece_begin] == 0) activate(step, piece);
    }
  }
}

bool Executor::next_woken_peer(std::uint32_t* peer) {
  if (woken_.empty()) return false;
  *peer = woken_.pop();
  woken_flag_[*peer] = 0;
  return true;
}

}  // namespace canarynet
