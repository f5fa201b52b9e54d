#include "collectives/executor.h"

#include <sys/mman.h>

#include <cstring>
#include <new>

#include "base/check.h"
#include "kernels/crc32c.h"

namespace canarynet {
namespace {

constexpr std::uint64_t pack(std::uint32_t step, std::uint32_t cell) { return std::uint64_t{step} << 32 | cell; }

}  // namespace

// Pages come with the first early arrival, usually never.
Executor::Reserved::Reserved(std::uint64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  begin_ = static_cast<std::byte*>(p);
}

Executor::Reserved::~Reserved() {
  if (begin_ != nullptr) munmap(begin_, bytes_);
}

Executor::Executor(const Program& program)
    : program_(program), staging_(program.staging_bytes), scratch_(program.scratch_bytes) {
  pending_.resize(program.units);
  flags_.resize(program.units);
  input_crc_.resize(program.cell_offset.size() - 1);
  output_crc_.resize(program.cell_offset.size() - 1);
  std::uint32_t sends = 0;
  for (const ProgramPeer& peer : program.peers) sends += peer.send_units;
  ready_.resize(sends);
  ready_head_.resize(program.peers.size());
  ready_tail_.resize(program.peers.size());
  missing_.resize(program.peers.size());
  unacked_.resize(program.peers.size());
  woken_flag_.resize(program.peers.size());
  woken_.reserve(program.peers.size());
  step_of_unit_.resize(program.units);
  for (std::uint32_t i = 0; i < program.steps.size(); ++i) {
    const ProgramStep& s = program.steps[i];
    for (std::uint32_t c = s.cell_begin; c < s.cell_end; ++c) step_of_unit_[s.unit_begin + c - s.cell_begin] = i;
  }
  work_.reserve(program.units);
}

void Executor::bind(const void* input, void* output, DataType type, ReduceOp op) {
  base_[static_cast<std::size_t>(Buffer::kInput)] = static_cast<std::byte*>(const_cast<void*>(input));  // only read
  base_[static_cast<std::size_t>(Buffer::kOutput)] = static_cast<std::byte*>(output);
  base_[static_cast<std::size_t>(Buffer::kScratch)] = scratch_.begin();
  type_ = type;
  average_ = op == CANARY_AVG;
  reduce_ = reduce_kernel(type, average_ ? CANARY_SUM : op);
  std::copy(program_.pending.begin(), program_.pending.end(), pending_.begin());
  std::fill(flags_.begin(), flags_.end(), std::uint8_t{0});
  std::fill(input_crc_.begin(), input_crc_.end(), std::nullopt);
  std::fill(output_crc_.begin(), output_crc_.end(), std::nullopt);
  for (std::size_t s = 0; s < program_.peers.size(); ++s) {
    ready_head_[s] = ready_tail_[s] = program_.peers[s].ready_begin;
    missing_[s] = program_.peers[s].receive_units;
    unacked_[s] = program_.peers[s].send_units;
    woken_flag_[s] = 0;
  }
  woken_.clear();
  work_.clear();
  taken_.clear();
  remaining_ = program_.units;
  for (std::uint32_t i = 0; i < program_.steps.size(); ++i) {
    const ProgramStep& s = program_.steps[i];
    if (s.kind != StepKind::kSend && s.kind != StepKind::kCopy) continue;
    for (std::uint32_t c = s.cell_begin; c < s.cell_end; ++c) {
      // From the program, not from pending_: copies that run here release others, which then are activated by drain().
      if (program_.pending[s.unit_begin + c - s.cell_begin] == 0) activate(i, c);
    }
  }
  drain();
}

Executor::SendCell Executor::peek_send(std::uint32_t slot) const {
  const std::uint64_t packed = ready_[ready_head_[slot]];
  const ProgramStep& s = program_.steps[packed >> 32];
  const auto cell = static_cast<std::uint32_t>(packed);
  return {&s, cell, at(s.src, cell), program_.cell_bytes(cell), s.unit_begin + cell - s.cell_begin};
}

std::uint32_t Executor::crc_of(const SendCell& send) {
  if (send.step->src == Buffer::kScratch) return crc32c(0, send.data, send.bytes);
  std::optional<std::uint32_t>& known = (send.step->src == Buffer::kInput ? input_crc_ : output_crc_)[send.cell];
  if (!known) known = crc32c(0, send.data, send.bytes);
  return *known;
}

void Executor::sent(std::uint32_t unit) {
  if (flags_[unit] & kDone) return;
  const std::uint32_t step = step_of_unit_[unit];
  const ProgramStep& s = program_.steps[step];
  --unacked_[s.peer_slot];
  finish_unit(step, s.cell_begin + unit - s.unit_begin);
  drain();
}

std::byte* Executor::staging_at(const ProgramStep& step, std::uint32_t cell) const {
  return staging_.begin() + step.staging + (program_.cell_offset[cell] - program_.cell_offset[step.cell_begin]);
}

const ProgramStep* Executor::find(int source, std::uint16_t tag, std::uint32_t piece) const {
  const ProgramStep* s = program_.receive_step(source, tag);
  return s != nullptr && piece < s->cell_end - s->cell_begin ? s : nullptr;
}

Executor::Place Executor::place_for(int source, std::uint16_t tag, std::uint32_t piece, std::uint32_t bytes) {
  const ProgramStep* s = find(source, tag, piece);
  if (s == nullptr) return {};
  const std::uint32_t cell = s->cell_begin + piece, unit = s->unit_begin + piece;
  if (program_.cell_bytes(cell) != bytes) return {};
  if (flags_[unit] & kArrived) return {PlaceKind::kDuplicate, nullptr, unit};
  if (flags_[unit] & kLanding) return {PlaceKind::kSlot, nullptr, unit};
  if (pending_[unit] != 0) {
    flags_[unit] |= kLanding;
    return {PlaceKind::kSpan, staging_at(*s, cell), unit};
  }
  // Its turn: a copy lands in place, a reduction in the lane's cache-sized slot.
  if (s->kind == StepKind::kReceive) {
    flags_[unit] |= kLanding;
    return {PlaceKind::kSpan, at(s->dst, cell), unit};
  }
  return {PlaceKind::kSlot, nullptr, unit};
}

bool Executor::fits(int source, std::uint16_t tag, std::uint32_t piece, std::uint32_t bytes,
                    std::uint32_t* unit) const {
  const ProgramStep* s = find(source, tag, piece);
  if (s == nullptr || program_.cell_bytes(s->cell_begin + piece) != bytes) return false;
  *unit = s->unit_begin + piece;
  return true;
}

void Executor::landing_lost(std::uint32_t unit) { flags_[unit] &= static_cast<std::uint8_t>(~kLanding); }

bool Executor::arrived(std::uint32_t unit, const std::byte* payload, bool* other_landing,
                       std::optional<std::uint32_t> crc) {
  *other_landing = false;
  const ProgramStep* s = &program_.steps[step_of_unit_[unit]];
  const std::uint32_t cell = s->cell_begin + (unit - s->unit_begin);
  std::byte* const staged = staging_at(*s, cell);
  const bool in_place = s->kind == StepKind::kReceive && payload == at(s->dst, cell);
  if (flags_[unit] & kArrived) return false;
  *other_landing = (flags_[unit] & kLanding) != 0 && payload != staged && !in_place;
  flags_[unit] = static_cast<std::uint8_t>((flags_[unit] | kArrived) & ~kLanding);
  --missing_[s->peer_slot];
  if (pending_[unit] != 0) {
    if (payload != staged) std::memcpy(staged, payload, program_.cell_bytes(cell));
    flags_[unit] |= kStaged;
    return true;
  }
  apply(*s, cell, payload, crc);
  finish_unit(step_of_unit_[unit], cell);
  drain();
  return true;
}

void Executor::expect_neighbours() {
  offers_.resize(program_.units);
  taken_.reserve(program_.units);
}

bool Executor::take(int source, std::uint16_t tag, std::uint32_t piece, const std::byte* payload, std::uint32_t bytes,
                    Taken sent_as) {
  const ProgramStep* s = find(source, tag, piece);
  CANARY_CHECK(s != nullptr && program_.cell_bytes(s->cell_begin + piece) == bytes, "local plans disagree");
  const std::uint32_t cell = s->cell_begin + piece, unit = s->unit_begin + piece;
  CANARY_CHECK((flags_[unit] & kArrived) == 0, "a neighbour's cell came twice");
  flags_[unit] |= kArrived;
  --missing_[s->peer_slot];
  if (pending_[unit] != 0) {
    flags_[unit] |= kOffered;
    offers_[unit] = {payload, sent_as};
    return false;
  }
  apply(*s, cell, payload, std::nullopt);
  finish_unit(step_of_unit_[unit], cell);
  drain();
  return true;
}

bool Executor::next_taken(Taken* taken) {
  if (taken_.empty()) return false;
  *taken = taken_.back();
  taken_.pop_back();
  return true;
}

void Executor::apply(const ProgramStep& step, std::uint32_t cell, const std::byte* payload,
                     std::optional<std::uint32_t> crc) {
  const std::uint32_t bytes = program_.cell_bytes(cell);
  const std::uint32_t elements = bytes / program_.element_bytes;
  std::byte* dst = at(step.dst, cell);
  if (step.kind == StepKind::kReceiveReduce) {
    reduce_(dst, at(step.src, cell), payload, elements);
  } else if (dst != payload) {
    std::memcpy(dst, payload, bytes);
  }
  const bool divides = step.finish && average_;
  if (divides) divide(type_, dst, elements, static_cast<std::uint32_t>(program_.ranks));
  if (step.dst == Buffer::kOutput) {
    input_crc_[cell].reset();  // it may be the same memory
    output_crc_[cell] = step.kind == StepKind::kReceiveReduce || divides ? std::nullopt : crc;
  }
}

// All dependencies of (step, cell) are done.
void Executor::activate(std::uint32_t step, std::uint32_t cell) {
  const ProgramStep& s = program_.steps[step];
  switch (s.kind) {
    case StepKind::kSend:
      ready_[ready_tail_[s.peer_slot]++] = pack(step, cell);
      if (!woken_flag_[s.peer_slot]) {
        woken_flag_[s.peer_slot] = 1;
        woken_.push_back(s.peer_slot);
      }
      break;
    case StepKind::kCopy:
      apply(s, cell, at(s.src, cell), std::nullopt);
      finish_unit(step, cell);
      break;
    case StepKind::kReceive:
    case StepKind::kReceiveReduce:
      if (const std::uint32_t unit = s.unit_begin + cell - s.cell_begin; (flags_[unit] & kStaged) != 0) {
        apply(s, cell, staging_at(s, cell), std::nullopt);
        finish_unit(step, cell);
      } else if ((flags_[unit] & kOffered) != 0) {
        apply(s, cell, offers_[unit].data, std::nullopt);
        taken_.push_back(offers_[unit].sent_as);
        finish_unit(step, cell);
      }
      break;
  }
}

void Executor::finish_unit(std::uint32_t step, std::uint32_t cell) {
  const ProgramStep& s = program_.steps[step];
  flags_[s.unit_begin + cell - s.cell_begin] |= kDone;
  --remaining_;
  if (s.dependents_begin != s.dependents_end) work_.push_back(pack(step, cell));
}

// A list instead of recursion: a staged chain may be as long as the group has ranks.
void Executor::drain() {
  while (!work_.empty()) {
    const std::uint64_t packed = work_.back();
    work_.pop_back();
    const ProgramStep& s = program_.steps[packed >> 32];
    const auto cell = static_cast<std::uint32_t>(packed);
    for (std::uint32_t d = s.dependents_begin; d != s.dependents_end; ++d) {
      const std::uint32_t step = program_.dependents[d];
      const ProgramStep& waiting = program_.steps[step];
      if (cell < waiting.cell_begin || cell >= waiting.cell_end) continue;
      if (--pending_[waiting.unit_begin + cell - waiting.cell_begin] == 0) activate(step, cell);
    }
  }
}

bool Executor::take_ready_slot(std::uint32_t* slot) {
  if (woken_.empty()) return false;
  *slot = woken_.back();
  woken_.pop_back();
  woken_flag_[*slot] = 0;
  return true;
}

}  // namespace canarynet
