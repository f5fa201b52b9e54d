// sync_report.h -- what training by a policy has come to, for people and for programs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "examples/train_fashion_mnist/options.h"
#include "examples/train_fashion_mnist/sync_trainer.h"

namespace train {

struct TestFigures {
  std::int64_t correct = 0;
  std::size_t images = 0;
  bool identical = false;  // the parameters on all ranks that are left
  std::uint64_t hash = 0;
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(images); }
};

std::string sync_text(const Options& options, const SyncFigures& figures, const TestFigures& test);
std::string sync_json(const Options& options, const SyncFigures& figures, const TestFigures& test);

}  // namespace train
