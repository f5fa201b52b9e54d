// engine/ticket.h -- how an operation's result travels from the engine to whoever asked for it.
//
// The caller owns the ticket and keeps it until done(). The engine writes the result, then releases it by one store;
// readers on other threads load with acquire. Reusable after reset().
#pragma once

#include <atomic>
#include <cstdint>

#include "base/status.h"

namespace canarynet {

struct OpTicket {
  std::atomic<int> code{CANARY_WOULD_BLOCK};
  Status status;                 // valid once done() and the code is not CANARY_OK
  void* group = nullptr;         // group creation: the caller's GroupMember
  std::uint32_t number = 0;      // the operation's number in its group
  std::uint32_t generation = 0;  // of its use: who names the ticket of an operation that may be done names this, too
  // Set when it is done, for whoever waits for any of several tickets; nullptr: nobody does. Outlives the ticket's use.
  std::atomic<bool>* news = nullptr;

  bool done() const { return code.load(std::memory_order_acquire) != CANARY_WOULD_BLOCK; }
  void finish(Status s) {
    const int c = s.code();
    if (c != CANARY_OK) status = std::move(s);
    std::atomic<bool>* const told = news;  // from the store on, the ticket is its owner's
    code.store(c, std::memory_order_release);
    if (told != nullptr) told->store(true, std::memory_order_relaxed);
  }
  void reset() {
    status = Status();
    group = nullptr;
    number = 0;
    ++generation;
    code.store(CANARY_WOULD_BLOCK, std::memory_order_relaxed);
  }
};

}  // namespace canarynet
