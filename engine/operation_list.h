// engine/operation_list.h -- a member's operations in flight, by ascending number.
//
// What: they end in about the order in which they began, so both ends are at hand: adding one and ending the oldest
// move nothing, and a number is found where it would be if none between had ended. Records stay where they are and the
// one freed last is taken first, so few operations of many groups touch little memory.
// Memory: reserve() fixes how many there can be; records come with the first use.
// Thread: the engine's owner.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/serial.h"

namespace canarynet {

template <typename Record>
class OperationList {
 public:
  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = Record;
    using difference_type = std::ptrdiff_t;
    using pointer = Record*;
    using reference = Record&;
    Iterator() = default;
    Iterator(const OperationList* list, std::size_t at) : list_(list), at_(at) {}
    Record& operator*() const { return *list_->entry(at_).record; }
    Record* operator->() const { return &**this; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    Iterator operator++(int) { return {list_, at_++}; }
    bool operator==(const Iterator&) const = default;

   private:
    const OperationList* list_ = nullptr;
    std::size_t at_ = 0;
  };

  void reserve(std::size_t limit) {
    std::size_t room = 1;
    while (room < limit) room *= 2;
    ring_.resize(room);
    spare_.reserve(room);
  }
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size_}; }
  Record& front() const { return *entry(0).record; }
  Record& operator[](std::size_t i) const { return *entry(i).record; }

  // Before add(): throws std::bad_alloc where no memory is left for a record.
  void make_room() {
    if (spare_.empty()) spare_.push_back(std::make_unique<Record>());
  }
  // Adds an operation whose number is behind all others.
  Record& add(std::uint32_t number) {
    CANARY_CHECK(size_ < ring_.size() && !spare_.empty(), "no room was made for an operation");
    Entry& e = entry(size_++);
    e.number = number;
    e.record = std::move(spare_.back());
    spare_.pop_back();
    *e.record = Record{};
    e.record->number = number;
    return *e.record;
  }

  Record* find(std::uint32_t number) const {
    const std::size_t i = index_of(number);
    return i < size_ ? entry(i).record.get() : nullptr;
  }

  // The record is free afterwards, and reads as it did until the next one is added.
  void remove(const Record& record) {
    const std::size_t i = index_of(record.number);
    CANARY_CHECK(i < size_, "an operation ends that is not in flight");
    std::unique_ptr<Record> freed = std::move(entry(i).record);
    if (i < size_ / 2) {
      for (std::size_t j = i; j != 0; --j) entry(j) = std::move(entry(j - 1));
      ++first_;
    } else {
      for (std::size_t j = i + 1; j != size_; ++j) entry(j - 1) = std::move(entry(j));
    }
    --size_;
    spare_.push_back(std::move(freed));
  }

 private:
  struct Entry {
    std::uint32_t number = 0;
    std::unique_ptr<Record> record;
  };
  Entry& entry(std::size_t i) { return ring_[(first_ + i) & (ring_.size() - 1)]; }
  const Entry& entry(std::size_t i) const { return ring_[(first_ + i) & (ring_.size() - 1)]; }

  // size_: there is none.
  std::size_t index_of(std::uint32_t number) const {
    if (size_ == 0 || later(entry(0).number, number)) return size_;
    // Those that ended before their elders are missing between, so it is there or before.
    std::size_t low = 0, high = std::min<std::size_t>(number - entry(0).number, size_ - 1);
    if (entry(high).number == number) return high;
    while (low < high) {
      const std::size_t middle = (low + high) / 2;
      if (later(number, entry(middle).number)) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return entry(low).number == number ? low : size_;
  }

  std::vector<Entry> ring_;  // a power of two
  std::vector<std::unique_ptr<Record>> spare_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

}  // namespace canarynet
