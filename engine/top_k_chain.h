// engine/top_k_chain.h -- an all-reduce by artopk or agtopk: a short chain of operations that one call owns.
//
// What: compress/ar_topk.h's choice of a root, then these phases, each an operation of the group with a number and a
// plan of its own:
//
//   artopk:star:R   the root's indices (broadcast), everybody's values there (all_reduce)
//   artopk:var:R    the norms of all ranks' own top-k (all_gather), then as above
//   agtopk:R        all ranks' own indices and values (all_gather)
//
// With or-dense, and wherever the codec was chosen, one more follows where an element is not finite: everything, dense.
//
// A member has one chain at a time, and enters nothing else before it has ended: numbers must mean the same on all
// ranks. This is its state between the phases; engine/top_k_operations.cc enters them. What is not finite goes along in
// the last phase, so that all ranks refuse the same element: no phase more, and nobody waits.
// Memory: arrays grow at the first use of a size. Thread: the engine's owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "collectives/piece_coder.h"
#include "compress/ar_topk.h"
#include "compress/error_feedback.h"
#include "compress/spec.h"
#include "engine/codec_use.h"
#include "port/command.h"
#include "port/ticket.h"
#include "transport/wire.h"

namespace canarynet {

// Its turn has come.
struct CalledOperation {
  OpRequest request;
  OpTicket* ticket = nullptr;
  Nanos submitted;
  Nanos deadline;
  bool chained = false;  // a phase of its member's TopKChain
  // With a codec and without a tensor: `count` floats, to which is added what this rank's encodings leave out. Empty:
  // that is lost.
  std::span<float> left_out = {};
  bool null_pieces = false;  // pieces of zeros travel without them
};

class TopKChain {
 public:
  enum class Phase : std::uint8_t { kNone, kNorms, kIndices, kValues, kPairs, kDense };
  // Of a call that lets its codec be chosen: where its time counts. No cell: there is none for it.
  struct Choice {
    CodecUse::Cell* cell = nullptr;
    std::size_t candidate = 0;
  };

  // Takes the call's input and what is left out of its tensor; `feedback` is empty without a tensor, which or-dense
  // needs. Throws std::bad_alloc, and is as it was then.
  void begin(const CalledOperation& called, const CodecSpec& spec, const Choice& choice, int rank, int ranks,
             const ErrorFeedback::Exchange& feedback, Nanos now);
  bool active() const { return phase_ != Phase::kNone; }
  // The present phase has not been entered yet.
  bool due() const { return due_; }
  // It is entered now.
  CalledOperation take_phase();
  // It has ended well, so the next one is due, or the call has ended: active() tells. CANARY_MISMATCH where rank
  // `*culprit` sent what no rank can have meant; CANARY_INVALID_ARGUMENT where an element was refused.
  Status go_on(int* culprit);
  void end() {
    phase_ = Phase::kNone;
    due_ = false;
  }
  const CalledOperation& called() const { return called_; }
  const CodecSpec& spec() const { return spec_; }
  const Choice& choice() const { return choice_; }
  Nanos began() const { return began_; }
  void set_deadline(Nanos deadline) { called_.deadline = deadline; }
  // Makes the signature of a phase that of the call, with the phase.
  void sign(wire::SignaturePayload* out) const;

  // Of a call that has ended well: whether everything went dense in the end, so that nothing below counts.
  bool went_dense() const { return went_dense_; }
  double sent_energy() const { return sent_energy_; }
  double left_energy() const { return left_energy_; }
  std::uint64_t value_bytes() const { return called_.request.count * sizeof(float); }
  std::uint64_t encoded_bytes() const { return encoded_bytes_; }
  // How often each rank was root, in calls that have ended well by artopk.
  const RootHistogram& roots() const { return roots_; }
  // Of a call that ended because of one; ranks are those of the group.
  const Refusal& refusal() const { return refusal_; }

 private:
  void choose_own();
  void offer_values();
  void offer_pairs();
  void note_refusal(std::uint32_t rank, std::uint32_t kind, std::uint64_t element);
  Status take_values();
  Status take_pairs(int* culprit);
  void finish_output();
  Status refuse();

  Phase phase_ = Phase::kNone;
  bool due_ = false;
  CalledOperation called_;
  CodecSpec spec_;
  Choice choice_;
  Nanos began_;
  bool went_dense_ = false;
  int rank_ = 0, ranks_ = 0, root_ = 0;
  std::size_t k_ = 0;
  std::span<float> work_;    // input + residual; once something is taken from it, what is left out
  std::uint64_t unfit_ = 0;  // its first element that is not finite, or its length
  float unfit_value_ = 0;
  RootHistogram roots_{0};
  std::map<std::uint64_t, std::uint64_t> iterations_;  // of each tensor in this group, for STAR
  std::vector<std::byte> space_;                       // of the choice
  std::vector<double> norms_;                          // of all ranks
  double own_norm_ = 0;
  std::vector<std::uint32_t> indices_;
  std::vector<float> values_;                     // k, then three per rank for refusals
  std::vector<std::uint32_t> pairs_, all_pairs_;  // a refusal, k indices, the bits of k values
  double sent_energy_ = 0, left_energy_ = 0;
  std::uint64_t encoded_bytes_ = 0;
  Refusal refusal_;
};

}  // namespace canarynet
