#include "control/text.h"

#include "base/duration_text.h"

namespace canarynet::control {

std::string ranks_text(const std::vector<int>& ranks) {
  constexpr std::size_t kRangesMax = 40;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  std::size_t ranges = 0;
  for (std::size_t i = 0; i < ranks.size();) {
    if (ranges++ == kRangesMax) return text + ", ... (" + std::to_string(ranks.size()) + " in all)";
    std::size_t j = i;
    while (j + 1 < ranks.size() && ranks[j + 1] == ranks[j] + 1) ++j;
    if (i != 0) text += ", ";
    text += std::to_string(ranks[i]);
    if (j != i) text += (j == i + 1 ? ", " : "-") + std::to_string(ranks[j]);
    i = j + 1;
  }
  return text;
}

std::string engine_text(const EngineInfo& engine) {
  return ranks_text(engine.ranks) + " (host " + engine.host_name + ", pid " + std::to_string(engine.pid) + ")";
}

std::string duration_text(Nanos t) {
  if (t.count % 1'000'000'000 == 0) return std::to_string(t.count / 1'000'000'000) + " s";
  return milliseconds(t);
}

Status failure(canary_status code, std::string text, int rank, const std::string& host, const char* phase) {
  ErrorDetail detail;
  detail.rank = rank;
  detail.host = host;
  detail.phase = phase;
  return Status(code, std::move(text), std::move(detail));
}

Refuse to_refuse(const Status& status) {
  return {status.code(), status.detail().rank, status.detail().host, status.text()};
}

Status to_status(const Refuse& refuse) { return failure(refuse.code, refuse.text, refuse.rank, refuse.host); }

}  // namespace canarynet::control
