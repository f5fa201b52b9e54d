// transport/decision_frames.h -- the words of a group's decisions (kSignature frames on their flow) as their receiver
// may read them.
//
// What: read() turns a frame into the word that it is, or says in a few words why it is none. Lists lie in the payload.
// Whether engines, planners and numbers make sense is the receiver's to know. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <variant>

#include "transport/decision_wire.h"

namespace canarynet::wire {

// A list of structs in a payload, wherever that lies.
template <typename T>
class ListIn {
 public:
  ListIn() = default;
  explicit ListIn(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::size_t size() const { return bytes_.size() / sizeof(T); }
  T at(std::size_t i) const {
    T out;
    std::memcpy(&out, bytes_.data() + i * sizeof out, sizeof out);
    return out;
  }

 private:
  std::span<const std::byte> bytes_;
};

struct LevelReport {
  ListIn<LinkLevel> levels;
};
struct TimesReport {
  ListIn<OperationTime> times;
};
struct TableProposal {
  std::uint32_t version = 0;
  ListIn<std::uint16_t> ring_order;  // empty, or the group's ranks
  ListIn<DecisionRow> rows;
};
struct EntryLimit {
  std::uint32_t version = 0;
  std::uint32_t last = 0;  // operation
};
struct TableCommit {
  std::uint32_t version = 0;
  std::uint32_t valid_from = 0;  // operation
};
struct TableWithdrawal {
  std::uint32_t version = 0;
};
using DecisionWord = std::variant<LevelReport, TimesReport, TableProposal, EntryLimit, TableCommit, TableWithdrawal>;

const char* read(const Header& header, std::span<const std::byte> payload, DecisionWord* out);

}  // namespace canarynet::wire
