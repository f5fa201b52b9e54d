#include "transport/decision_frames.h"

namespace canarynet::wire {
namespace {

template <typename T>
const char* check_list(std::span<const std::byte> payload, std::size_t least, std::size_t most) {
  if (payload.size() % sizeof(T) != 0) return "a list that ends within an entry";
  const std::size_t entries = payload.size() / sizeof(T);
  if (entries < least || entries > most) return "a list of another length than its word has";
  return nullptr;
}

}  // namespace

const char* read(const Header& header, std::span<const std::byte> payload, DecisionWord* out) {
  if (header.kind != Kind::kSignature) return "another kind";
  if (payload.size() != header.payload_bytes) return "a payload of another length than its header tells";
  const auto frame = static_cast<DecisionFrame>(header.step);
  if (frame == DecisionFrame::kReport) {
    if (const char* why = check_list<LinkLevel>(payload, 1, kLevelsPerReport)) return why;
    *out = LevelReport{ListIn<LinkLevel>(payload)};
    return nullptr;
  }
  if (frame == DecisionFrame::kTimes) {
    if (const char* why = check_list<OperationTime>(payload, 1, kTimesPerReport)) return why;
    *out = TimesReport{ListIn<OperationTime>(payload)};
    return nullptr;
  }
  if (header.signature == 0) return "a table without a version";
  if (frame == DecisionFrame::kTable) {
    const std::size_t order_bytes = header.op * sizeof(std::uint16_t);
    if (header.op > kOrderedRanksMax || order_bytes > payload.size()) return "an order of more ranks than are there";
    const std::span<const std::byte> rows = payload.subspan(order_bytes);
    if (const char* why = check_list<DecisionRow>(rows, 0, kDecisionRowsMax)) return why;
    *out =
        TableProposal{header.signature, ListIn<std::uint16_t>(payload.first(order_bytes)), ListIn<DecisionRow>(rows)};
    return nullptr;
  }
  if (!payload.empty()) return "a payload of another length than its word has";
  switch (frame) {
    case DecisionFrame::kLimit:
      *out = EntryLimit{header.signature, header.op};
      return nullptr;
    case DecisionFrame::kCommit:
      *out = TableCommit{header.signature, header.op};
      return nullptr;
    case DecisionFrame::kWithdraw:
      *out = TableWithdrawal{header.signature};
      return nullptr;
    default:
      return "a word that is not known";
  }
}

}  // namespace canarynet::wire
