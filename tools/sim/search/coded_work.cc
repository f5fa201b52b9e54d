#include "tools/sim/search/coded_work.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "base/check.h"
#include "collectives/program.h"

namespace canarynet::sim {
namespace {

constexpr std::uint32_t kWholeLeaf = 1u << 31;

// How many ranks' values are in what lies in a rank's buffers, and in what is under way.
class Counting {
 public:
  Counting(PlannerId id, const PlanRequest& request) {
    for (int rank = 0; rank < request.ranks; ++rank) {
      State& s = states_.emplace_back();
      s.program = compile(id, request, rank, kWholeLeaf, {.kind = CodecKind::kInt8});
      const std::size_t pieces = s.program.piece_offset.size() - 1;
      for (auto& of_buffer : s.values) of_buffer.assign(pieces, 1);
      s.pending = s.program.pending;
      s.done.assign(s.program.tasks, false);
    }
    work_.ranks.resize(states_.size());
    total_ = static_cast<double>(request.total() * request.element_bytes);
  }

  CodedWork run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < states_.size(); ++rank) moved |= advance(rank);
    }
    for (const State& s : states_) {
      CANARY_CHECK(std::find(s.done.begin(), s.done.end(), false) == s.done.end(), "a checked plan comes to its end");
    }
    work_.encodings /= static_cast<double>(states_.size());
    return work_;
  }

 private:
  struct State {
    Program program;
    std::array<std::vector<double>, 3> values;  // [Buffer][piece]
    std::vector<std::uint16_t> pending;
    std::vector<bool> done;
  };
  using Way = std::tuple<int, int, std::uint16_t, std::uint32_t>;  // from, to, tag, piece of the step

  // Whether any task of the rank could be done.
  bool advance(std::size_t rank) {
    State& s = states_[rank];
    bool moved = false;
    for (const ProgramStep& step : s.program.steps) {
      for (std::uint32_t piece = step.piece_begin; piece < step.piece_end; ++piece) {
        const std::uint32_t task = step.task_begin + piece - step.piece_begin;
        if (s.done[task] || s.pending[task] != 0 || !carry_out(rank, step, piece, task)) continue;
        s.done[task] = moved = true;
        for (std::uint32_t d = step.dependents_begin; d < step.dependents_end; ++d) {
          const ProgramStep& next = s.program.steps[s.program.dependents[d]];
          if (piece >= next.piece_begin && piece < next.piece_end)
            --s.pending[next.task_begin + piece - next.piece_begin];
        }
      }
    }
    return moved;
  }

  // False: what it receives has not been sent yet.
  bool carry_out(std::size_t rank, const ProgramStep& step, std::uint32_t piece, std::uint32_t task) {
    State& s = states_[rank];
    CodedWork::OfRank& work = work_.ranks[rank];
    const int self = static_cast<int>(rank);
    const double share = s.program.bytes_of(piece) / total_;
    const double source = s.values[static_cast<std::size_t>(step.src)][piece];
    double& target = s.values[static_cast<std::size_t>(step.dst)][piece];
    const auto encode = [&](double values) {
      work.encoded += share;
      work.decoded += share;
      work_.encodings += values * share;
    };
    const std::uint32_t in_step = piece - step.piece_begin;
    switch (step.kind) {
      case StepKind::kSend:
        if (s.program.slot_of_task[task] == task) encode(source);
        under_way_[{self, step.peer, step.tag, in_step}] = source;
        return true;
      case StepKind::kReceive:
      case StepKind::kReceiveReduce: {
        const auto arrived = under_way_.find({step.peer, self, step.tag, in_step});
        if (arrived == under_way_.end()) return false;
        const bool adds = step.kind == StepKind::kReceiveReduce;
        (adds ? work.added : work.decoded) += share;
        target = arrived->second + (adds ? source : 0);
        under_way_.erase(arrived);
        break;
      }
      case StepKind::kCopy:
        target = source;
        break;
      case StepKind::kReduce:
        target += source;
        break;
    }
    if (step.finish) encode(target);
    return true;
  }

  std::vector<State> states_;
  std::map<Way, double> under_way_;
  CodedWork work_;
  double total_ = 1;
};

}  // namespace

double CodedWork::seconds_per_byte(double encode, double decode, double add) const {
  double most = 0;
  for (const OfRank& r : ranks) most = std::max(most, r.encoded * encode + r.decoded * decode + r.added * add);
  return most;
}

CodedWork coded_work(PlannerId id, const PlanRequest& request) { return Counting(id, request).run(); }

}  // namespace canarynet::sim
