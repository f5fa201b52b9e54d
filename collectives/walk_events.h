// collectives/walk_events.h -- what a cost walk (collectives/walk.h) expects to happen, by time.
//
// What: most kinds of events take as long as the last one of the kind did, so they come about in the order of their
// times: a queue each. What is earlier than the last of its queue goes to a radix heap (Ahuja, Mehlhorn, Orlin, Tarjan
// 1990): times only grow, and times that are not negative compare as their bits do. Nothing depends on the order of
// events of one moment. Pure; one thread; allocates. Units: seconds.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

namespace canarynet {

class WalkEvents {
 public:
  enum Kind : std::uint32_t { kArrival, kHere, kDone, kOutFree, kInFree };
  struct Event {
    std::uint64_t at;
    std::uint32_t what;  // kind and index: kArrival, kHere: the send; kDone: the step; else the gate
    std::uint32_t task;  // of the step
    Kind kind() const { return static_cast<Kind>(what >> kIndexBits); }
    std::uint32_t index() const { return what & ((1u << kIndexBits) - 1); }
  };
  static constexpr int kIndexBits = 29;

  void push(double at, Kind kind, std::uint32_t index, std::uint32_t task = 0) {
    const Event event{std::bit_cast<std::uint64_t>(at), std::uint32_t{kind} << kIndexBits | index, task};
    Line& line = lines_[kind];
    if (line.takes(event.at)) {
      line.push(event);
    } else {
      heap_min_ = std::min(heap_min_, event.at);
      put(event);
    }
  }
  // Takes all events of the next moment; false if there are none.
  bool next(double* now, std::vector<Event>* out) {
    std::uint64_t at = heap_min_;
    for (const Line& line : lines_) at = std::min(at, line.next());
    if (at == kNever) return false;
    *now = std::bit_cast<double>(at);
    out->clear();
    if (heap_min_ == at) take_from_heap(out);
    for (Line& line : lines_) {
      while (line.next() == at) out->push_back(line.pop());
    }
    return true;
  }
  // How often an event was put into the heap, or moved in it.
  std::uint64_t heaped() const { return heaped_; }

 private:
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

  class Line {
   public:
    bool takes(std::uint64_t at) const { return count_ == 0 || at >= last_; }
    std::uint64_t next() const { return count_ == 0 ? kNever : ring_[head_].at; }
    void push(const Event& event) {
      if (count_ == ring_.size()) grow();
      ring_[(head_ + count_++) & (ring_.size() - 1)] = event;
      last_ = event.at;
    }
    Event pop() {
      const Event event = ring_[head_];
      head_ = (head_ + 1) & (ring_.size() - 1);
      --count_;
      return event;
    }

   private:
    void grow() {
      std::rotate(ring_.begin(), ring_.begin() + static_cast<std::ptrdiff_t>(head_), ring_.end());
      head_ = 0;
      ring_.resize(std::max<std::size_t>(64, 2 * ring_.size()));
    }
    std::vector<Event> ring_;  // a power of two of them
    std::size_t head_ = 0, count_ = 0;
    std::uint64_t last_ = 0;
  };

  // Bucket b has the events whose time differs from the heap's last moment in bit b - 1 and below; the sign never does.
  void put(const Event& event) {
    const auto b = static_cast<std::size_t>(std::bit_width(event.at ^ last_));
    buckets_[b].push_back(event);
    filled_ |= std::uint64_t{1} << b;
    ++heaped_;
  }
  // Its first moment is the next one of all.
  void take_from_heap(std::vector<Event>* out) {
    if (const int b = std::countr_zero(filled_); b > 0) {
      moving_.swap(buckets_[static_cast<std::size_t>(b)]);
      filled_ &= filled_ - 1;
      last_ = heap_min_;
      for (const Event& e : moving_) put(e);
      moving_.clear();
    }
    out->swap(buckets_[0]);
    filled_ &= ~std::uint64_t{1};
    heap_min_ = kNever;
    if (filled_ == 0) return;
    for (const Event& e : buckets_[static_cast<std::size_t>(std::countr_zero(filled_))])
      heap_min_ = std::min(heap_min_, e.at);
  }

  std::array<Line, 5> lines_;  // by kind
  std::uint64_t heap_min_ = kNever, heaped_ = 0;
  std::uint64_t last_ = 0, filled_ = 0;  // filled_: a bit for each bucket that is not empty
  std::array<std::vector<Event>, 64> buckets_;
  std::vector<Event> moving_;
};

}  // namespace canarynet
