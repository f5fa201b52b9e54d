// engine/operation_chain.h -- an all-reduce whose codec encodes no pieces: a short chain of operations that one call
// owns.
//
// What: each phase is an operation of the group with a number and a plan of its own. engine/top_k_chain.h has the
// phases of artopk and agtopk, engine/low_rank_chain.h those of power and svd. Here is what they share: the input with
// what was left out of its tensor, refusals of elements that are not finite, and the last phase of or-dense, which
// follows where there is one: everything, dense.
//
// A member has one chain at a time, and enters nothing else before it has ended: numbers must mean the same on all
// ranks. This is its state between the phases; engine/chained_operations.cc enters them.
// Memory: arrays grow at the first use of a size. Thread: the engine's owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "collectives/piece_coder.h"
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
  bool chained = false;  // a phase of its member's chain
  // With a codec and without a tensor: `count` floats, to which is added what this rank's encodings leave out. Empty:
  // that is lost.
  std::span<float> left_out = {};
  bool null_pieces = false;  // pieces of zeros travel without them
};

// What an all-reduce with a tensor has to do with: the elements of that tensor, and which of them travel.
inline std::uint64_t tensor_elements(const OpRequest& r) { return r.part_of != 0 ? r.part_of : r.count; }
inline TensorPart part_of_tensor(const OpRequest& r) {
  return r.part_of != 0 ? TensorPart{r.part_begin, r.count} : TensorPart{};
}

class OperationChain {
 public:
  // Signatures have its number.
  enum class Phase : std::uint8_t {
    kNone,
    kNorms,
    kIndices,
    kValues,
    kPairs,
    kDense,
    kLeft,
    kRight,
    kRefusals,
    kFactors,
  };
  // Of a call that lets its codec be chosen: where its time counts. No cell: there is none for it.
  struct Choice {
    CodecUse::Cell* cell = nullptr;
    std::size_t candidate = 0;
  };
  // Of the caller, in its group.
  struct Place {
    int rank = 0;
    int ranks = 1;
    std::uint32_t number = 0;  // of the first phase
  };

  virtual ~OperationChain() = default;
  // Takes the call's input and what is left out of its tensor. `feedback` is null without a tensor, else the tensor is
  // prepared there. Throws std::bad_alloc, and is as it was then.
  void begin(const CalledOperation& called, const CodecSpec& spec, const Choice& choice, const Place& place,
             ErrorFeedback* feedback, Nanos now);
  bool active() const { return phase_ != Phase::kNone; }
  // The present phase has not been entered yet.
  bool due() const { return due_; }
  // It is entered now.
  CalledOperation take_phase();
  // It has ended well, or its own codec has refused an element (`refused`). So the next one is due, or the call has
  // ended: active() tells. CANARY_MISMATCH where rank `*culprit` sent what no rank can have meant;
  // CANARY_INVALID_ARGUMENT where an element was refused.
  Status go_on(bool refused, int* culprit);
  void end() {
    phase_ = Phase::kNone;
    due_ = false;
  }
  const CalledOperation& called() const { return called_; }
  const CodecSpec& spec() const { return spec_; }
  const Choice& choice() const { return choice_; }
  Nanos began() const { return began_; }
  std::uint32_t number() const { return number_; }  // of its first phase
  void set_deadline(Nanos deadline) { called_.deadline = deadline; }
  // Makes the signature of a phase that of the call, with the phase.
  void sign(wire::SignaturePayload* out) const;

  // Of a call that has ended well: whether everything went dense in the end, so that nothing below counts.
  bool went_dense() const { return went_dense_; }
  // Sums of squares: of the input with its residual, of what was sent of that, and of what is left.
  double energy() const { return energy_; }
  double sent_energy() const { return sent_energy_; }
  double left_energy() const { return left_energy_; }
  std::uint64_t value_bytes() const { return called_.request.count * sizeof(float); }
  std::uint64_t encoded_bytes() const { return encoded_bytes_; }
  // A phase with a codec of its own has made so many bytes.
  void note_encoded(std::uint64_t bytes) { encoded_bytes_ += bytes; }
  // Of a call that ended because of one; ranks are those of the group.
  const Refusal& refusal() const { return refusal_; }

 protected:
  // A refusal as numbers: what the value is, and the element in two parts, which floats hold exactly. All 0: none.
  static constexpr std::size_t kRefusalWords = 3;
  struct RefusalWords {
    std::uint32_t kind = 0, high = 0, low = 0;
  };
  RefusalWords own_refusal() const;
  // What a rank has told; its kind is not 0.
  void note_refusal(int rank, const RefusalWords& told);
  // All ranks have found the same element: the call ends with it, or goes dense. The input is as it was.
  Status refuse();
  bool fit() const { return unfit_ == work_.size(); }

  Status next(Phase phase) {
    phase_ = phase;
    due_ = true;
    return {};
  }
  Phase phase() const { return phase_; }
  std::span<float> output() const { return {static_cast<float*>(called_.request.output), called_.request.count}; }
  // The sum is there; the caller may want the mean.
  void finish_output();
  template <typename T>
  static void grow(std::vector<T>* v, std::size_t size) {
    if (v->size() < size) v->resize(size);
  }

  int rank_ = 0, ranks_ = 0;
  std::span<float> work_;  // input + residual; once something is taken from it, what is left out
  double energy_ = 0, sent_energy_ = 0, left_energy_ = 0;
  std::uint64_t encoded_bytes_ = 0;

 private:
  // Takes all memory that the call needs, before anything changes.
  virtual void make_room(const OpRequest& request, const CodecSpec& spec, const Place& place,
                         ErrorFeedback* feedback) = 0;
  // `work_` is there. Returns the first phase.
  virtual Phase start(const Place& place) = 0;
  // Makes the call's operation that of the present phase; it has neither codec nor tensor yet.
  virtual void shape(CalledOperation* operation) = 0;
  virtual Status take(bool refused, int* culprit) = 0;
  // What distinguishes phases besides their numbers.
  virtual int root() const { return 0; }

  Phase phase_ = Phase::kNone;
  bool due_ = false;
  CalledOperation called_;
  CodecSpec spec_;
  Choice choice_;
  Nanos began_;
  std::uint32_t number_ = 0;
  bool went_dense_ = false;
  std::uint64_t unfit_ = 0;  // the first element that is not finite, or their number
  float unfit_value_ = 0;
  Refusal refusal_;
};

}  // namespace canarynet
