// port/id_table.h -- numbers for objects, so that a command can name them.
//
// An object has its place from add() to remove(), and a place tells which use of it this is. at() from any thread,
// without a lock; the object stays as long as whoever may name it says so. Places are used again.
// Memory: grows in chunks to the most objects at a time, never shrinks. Failure: std::bad_alloc from add(), also beyond
// four million objects.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

namespace canarynet::port {

template <typename T>
class IdTable {
 public:
  static constexpr std::uint32_t kNowhere = 0xffffffff;

  IdTable() = default;
  IdTable(const IdTable&) = delete;
  IdTable& operator=(const IdTable&) = delete;
  ~IdTable() {
    for (auto& chunk : chunks_) delete[] chunk.load(std::memory_order_relaxed);
  }

  struct Place {
    std::uint32_t place;
    std::uint32_t use;
  };
  Place add(T* object) {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) grow();
    const std::uint32_t place = free_.back();
    free_.pop_back();
    Slot& s = *slot(place);
    const std::uint32_t use = s.use.load(std::memory_order_relaxed) + 1;
    s.use.store(use, std::memory_order_relaxed);  // before the object: who finds that finds its use
    s.object.store(object, std::memory_order_release);
    return {place, use};
  }
  void remove(std::uint32_t place) {
    const std::lock_guard lock(mutex_);
    slot(place)->object.store(nullptr, std::memory_order_release);
    free_.push_back(place);  // there is room: see grow()
  }
  // nullptr: there is nobody.
  T* at(std::uint32_t place) const {
    const Slot* s = place / kChunk < kChunks ? slot(place) : nullptr;
    return s != nullptr ? s->object.load(std::memory_order_acquire) : nullptr;
  }
  // The object of that use: one that has ended is not taken for the one that has its place now.
  T* at(std::uint32_t place, std::uint32_t use) const {
    T* const object = at(place);
    return object != nullptr && slot(place)->use.load(std::memory_order_relaxed) == use ? object : nullptr;
  }

 private:
  static constexpr std::uint32_t kChunk = 1024;
  static constexpr std::uint32_t kChunks = 4096;
  struct Slot {
    std::atomic<T*> object{nullptr};
    std::atomic<std::uint32_t> use{0};
  };

  Slot* slot(std::uint32_t place) const {
    Slot* chunk = chunks_[place / kChunk].load(std::memory_order_acquire);
    return chunk != nullptr ? chunk + place % kChunk : nullptr;
  }
  void grow() {
    if (made_ == kChunks) throw std::bad_alloc();
    free_.reserve(std::size_t{made_ + 1} * kChunk);
    chunks_[made_].store(new Slot[kChunk], std::memory_order_release);
    for (std::uint32_t i = kChunk; i-- > 0;) free_.push_back(made_ * kChunk + i);
    ++made_;
  }

  std::mutex mutex_;
  std::vector<std::uint32_t> free_;
  std::uint32_t made_ = 0;
  std::array<std::atomic<Slot*>, kChunks> chunks_{};
};

}  // namespace canarynet::port
