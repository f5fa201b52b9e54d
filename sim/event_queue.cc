#include "sim/event_queue.h"

namespace canarynet {

void EventQueue::push(Nanos at, std::uint32_t kind, std::uint32_t index, std::uint32_t generation) {
  const Event event{at, next_sequence_++, kind, index, generation, 0};
  std::size_t hole = heap_.size();
  heap_.push_back(event);
  while (hole > 0) {
    const std::size_t parent = (hole - 1) / 2;
    if (!before(event, heap_[parent])) break;
    heap_[hole] = heap_[parent];
    hole = parent;
  }
  heap_[hole] = event;
}

Event EventQueue::pop() {
  const Event top = heap_.front();
  const Event last = heap_.back();
  heap_.pop_back();
  const std::size_t size = heap_.size();
  if (size == 0) return top;
  // The hole sinks to a leaf along the smaller children, then `last` rises: fewer comparisons than sinking `last`
  // itself, which came from the bottom and mostly belongs there.
  std::size_t hole = 0, child = 1;
  for (; child + 1 < size; child = 2 * hole + 1) {
    child += before(heap_[child + 1], heap_[child]);
    heap_[hole] = heap_[child];
    hole = child;
  }
  if (child < size) {
    heap_[hole] = heap_[child];
    hole = child;
  }
  while (hole > 0) {
    const std::size_t parent = (hole - 1) / 2;
    if (!before(last, heap_[parent])) break;
    heap_[hole] = heap_[parent];
    hole = parent;
  }
  heap_[hole] = last;
  return top;
}

}  // namespace canarynet
