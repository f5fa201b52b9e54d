// compress/error_feedback.h -- what a lossy codec left out of a tensor is added to its next gradient.
//
// Source: FlexComm eq. 2 (Tyagi, Swany 2023), after Seide et al. 2014 and Karimireddy et al. 2019:
// g_e = gradient + residual; sent = decode(encode(g_e)); residual = g_e - sent. So nothing is lost, only late: for a
// sparsifier sent + residual is g_e exactly, for every other codec to one unit in the last place of the larger operand.
//
// State: one residual per tensor id (f32, as many as the tensor has elements), and the compression gain
// E||sent||^2 / E||g_e||^2 (FlexComm 2-C3), smoothed over about 1 / kGainWeight steps: numerator and denominator each
// by itself. It is at most 1 for codecs that only leave things out, and may exceed 1 for unbiased ones (terngrad).
// save() gives versioned bytes with a checksum, restore() checks them before it changes anything.
//
// Momentum correction (Lin et al., Deep Gradient Compression, ICLR 2018, sections 3.2 and 3.3) for sparsifiers: this
// rank's gradients gather momentum before they are sparsified, in place of that of the optimizer, which would multiply
// what comes late. velocity = momentum * velocity + gradient; g_e = velocity + residual. Where nothing is left out of
// an element, its velocity ends with it (their momentum factor masking), so that it is not driven by stale gradients.
// So sent + residual is g_e exactly, as without momentum, and a gradient counts at most 1 / (1 - momentum) times.
//
// Power iteration (compress/low_rank.h) carries its right factor from one exchange of a tensor to the next, the same on
// all ranks; it is kept and saved here.
//
// Memory: prepare() allocates a tensor's residual, begin() as much again, and three times as much again with momentum;
// compensate, commit and settle allocate nothing. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/status.h"

namespace canarynet {

// Elements of a tensor that an exchange has to do with. Count 0: all of them.
struct TensorPart {
  std::size_t begin = 0, count = 0;
};

class ErrorFeedback {
 public:
  static constexpr double kGainWeight = 0.1;

  // Makes room for a tensor of `count` elements, its residual zero. A tensor that is known keeps its residual; one
  // whose count differs is CANARY_MISMATCH.
  Status prepare(std::uint64_t tensor, std::size_t count);
  void forget(std::uint64_t tensor) { tensors_.erase(tensor); }

  // out = values + residual. `out` may be `values`. The tensor was prepared with this count (CANARY_CHECK).
  void compensate(std::uint64_t tensor, const float* values, std::size_t count, float* out) const;
  // residual = compensated - sent, where `sent` is what this rank's bytes decode to. Counts one step of the gain.
  void settle(std::uint64_t tensor, const float* compensated, const float* sent, std::size_t count);

  // The same for an exchange that settles piece by piece: `residual` is to be added to the tensor's values, and what
  // its encodings leave out is to be added to `left_out`, which begins as zeros. Nothing counts before commit(); both
  // stay until then, or until the next begin() if there is none. The tensor was prepared. Allocates at the first use.
  struct Exchange {
    std::span<const float> residual;
    std::span<float> left_out;
  };
  // With momentum, `residual` holds the tensor's momentum as well, and `values` are the tensor's, as many as it has. An
  // exchange without it, once committed, ends the tensor's velocity. Several parts of a tensor may be exchanged at a
  // time, if no two share an element and all have the same momentum; `values` and both spans are the part's.
  Exchange begin(std::uint64_t tensor, const float* values = nullptr, float momentum = 0, TensorPart part = {});
  // `left_energy`: sum of squares of what is left out.
  void commit(std::uint64_t tensor, double sent_energy, double energy, double left_energy, TensorPart part = {});

  // What power iteration begins with in the tensor's next exchange: zeros at first, and where it had another length.
  // The tensor was prepared. It stays where it is until forget(), restore() or a call with another length, allocates at
  // the first use.
  std::span<float> right_factor(std::uint64_t tensor, std::size_t length);

  // Something may be left out of the tensor.
  bool leaves(std::uint64_t tensor) const;
  // An exchange has sent the tensor, or a part, with all that was left out of it before: nothing is, now.
  void commit_all_sent(std::uint64_t tensor, TensorPart part = {});

  bool knows(std::uint64_t tensor) const { return tensors_.count(tensor) != 0; }
  // Of a prepared tensor.
  std::span<const float> residual(std::uint64_t tensor, TensorPart part = {}) const;
  // Empty before the first exchange with momentum.
  std::span<const float> velocity(std::uint64_t tensor) const;
  // 1 before the first step.
  double gain(std::uint64_t tensor) const;
  // Over all tensors, by their energies; 1 before the first step.
  double gain() const;
  std::size_t tensors() const { return tensors_.size(); }

  // Euclidean, of one tensor or of all.
  double residual_norm(std::uint64_t tensor) const;
  double residual_norm() const;

  // Sums of squares over all tensors: smoothed, of what was sent and of what it was made from; and of what exchanges
  // have left out. Cheap.
  double sent_energy() const { return sum(&Tensor::sent_energy); }
  double energy() const { return sum(&Tensor::energy); }
  double left_energy() const { return sum(&Tensor::left_energy); }

  std::size_t saved_bytes() const;
  std::vector<std::uint8_t> save() const;
  // Replaces all state. CANARY_MISMATCH with the reason if the bytes are damaged or of another version; the state is as
  // it was then.
  Status restore(std::span<const std::uint8_t> bytes);

 private:
  struct Tensor {
    std::vector<float> residual;
    std::vector<float> left_out;                // of the exchange under way
    std::vector<float> velocity;                // empty: there is no momentum
    std::vector<float> velocity_next, carried;  // of the exchange under way, with momentum; else not used
    std::vector<float> right_factor;            // empty: no exchange has had one
    bool gathers = false;                       // the exchange under way has momentum
    double sent_energy = 0;                     // smoothed ||sent||^2
    double energy = 0;                          // smoothed ||g_e||^2
    std::uint64_t steps = 0;
    double left_energy = 0;  // of `residual`, as exchanges told
    bool leaves = true;      // `residual` may hold something
  };
  double sum(double Tensor::*of) const {
    double all = 0;
    for (const auto& [id, tensor] : tensors_) all += tensor.*of;
    return all;
  }
  const Tensor& known(std::uint64_t tensor) const;
  Tensor& known(std::uint64_t tensor);
  static TensorPart within(const Tensor& state, TensorPart part);
  // `share`: of the tensor's elements that the step was of.
  static void count_step(Tensor& state, double sent_energy, double energy, double share = 1);

  std::map<std::uint64_t, Tensor> tensors_;
};

}  // namespace canarynet
