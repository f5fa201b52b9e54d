// engine/flow/flow_table.h -- which flow has a number, and which has a place that was remembered.
//
// Numbers are found by open addressing, so that the table's size follows the flows that live, not those that ever were.
// A flow is remembered by its handle: a place and that place's generation, so that one which has ended is not
// taken for the one that has its place now. One owner thread. Allocates where a flow is added.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "engine/flow/flow.h"

namespace canarynet {

class FlowTable {
 public:
  // The number is not in the table.
  void add(std::uint32_t number, Flow& flow) {
    CANARY_CHECK(flow.handle_ == 0, "a flow has one number");
    CANARY_CHECK(find(number) == nullptr, "a number names one flow");
    if (2 * (flows_ + 1) > cells_.size()) grow();
    std::uint32_t place = 0;
    if (!free_.empty()) {
      place = free_.back();
      free_.pop_back();
    } else {
      place = static_cast<std::uint32_t>(places_.size());
      places_.push_back({});
      free_.reserve(places_.capacity());
    }
    places_[place].flow = &flow;
    flow.handle_ = std::uint64_t{++places_[place].generation} << 32 | place;
    put({number, place + 1});
    ++flows_;
  }
  void remove(std::uint32_t number) {
    std::size_t at = cell_of(number);
    if (at == kNone) return;
    Place& place = places_[cells_[at].place - 1];
    place.flow->handle_ = 0;
    place.flow = nullptr;
    free_.push_back(cells_[at].place - 1);
    --flows_;
    // The cells that followed it in its row close up.
    const std::size_t mask = cells_.size() - 1;
    for (std::size_t next = (at + 1) & mask; cells_[next].place != 0; next = (next + 1) & mask) {
      const std::size_t home = home_of(cells_[next].number);
      if (((next - home) & mask) < ((next - at) & mask)) continue;
      cells_[at] = cells_[next];
      at = next;
    }
    cells_[at] = {};
  }

  Flow* find(std::uint32_t number) const {
    const std::size_t at = cell_of(number);
    return at == kNone ? nullptr : places_[cells_[at].place - 1].flow;
  }
  // nullptr: it has ended.
  Flow* at(std::uint64_t handle) const {
    const auto place = static_cast<std::uint32_t>(handle);
    if (place >= places_.size() || places_[place].generation != handle >> 32) return nullptr;
    return places_[place].flow;
  }
  static std::uint64_t handle_of(const Flow& flow) { return flow.handle_; }
  std::size_t size() const { return flows_; }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};
  struct Cell {
    std::uint32_t number = 0;
    std::uint32_t place = 0;  // plus one; 0: empty
  };
  struct Place {
    Flow* flow = nullptr;
    std::uint32_t generation = 0;
  };

  // Fibonacci hashing: numbers that follow each other lie apart.
  std::size_t home_of(std::uint32_t number) const {
    return static_cast<std::size_t>(number * 0x9e3779b1u >> (32 - std::countr_zero(cells_.size())));
  }
  std::size_t cell_of(std::uint32_t number) const {
    if (cells_.empty()) return kNone;
    const std::size_t mask = cells_.size() - 1;
    for (std::size_t at = home_of(number); cells_[at].place != 0; at = (at + 1) & mask) {
      if (cells_[at].number == number) return at;
    }
    return kNone;
  }
  void put(const Cell& cell) {
    const std::size_t mask = cells_.size() - 1;
    std::size_t at = home_of(cell.number);
    while (cells_[at].place != 0) at = (at + 1) & mask;
    cells_[at] = cell;
  }
  void grow() {
    std::vector<Cell> old(cells_.empty() ? 16 : 2 * cells_.size());
    old.swap(cells_);
    for (const Cell& cell : old) {
      if (cell.place != 0) put(cell);
    }
  }

  std::vector<Cell> cells_;  // a power of two, at most half of them taken
  std::vector<Place> places_;
  std::vector<std::uint32_t> free_;
  std::size_t flows_ = 0;
};

}  // namespace canarynet
