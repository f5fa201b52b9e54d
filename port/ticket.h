// port/ticket.h -- how a result travels from the engine to whoever asked for it.
//
// The caller owns the ticket and keeps it until done(). The engine writes the result, then releases it by one store;
// readers on other threads load with acquire. Reusable after reset(). A command names a ticket by its place in the
// table of its engine, which it joins once and leaves when it ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/status.h"
#include "base/units.h"
#include "port/command.h"
#include "port/id_table.h"

namespace canarynet {

struct OpTicket;
using TicketTable = port::IdTable<OpTicket>;

struct OpTicket {
  std::atomic<int> code{CANARY_WOULD_BLOCK};
  Status status;             // valid once done() and the code is not CANARY_OK
  port::MemberId member;     // group creation: the caller's
  port::MemberShape shape;   // likewise
  std::uint32_t number = 0;  // the operation's number in its group
  std::uint64_t bytes = 0;   // messages: of the one that was sent or has come
  Nanos done_at{};           // a collective that has succeeded: when, on the engine's clock
  // Set when it is done, for whoever waits for any of several tickets; nullptr: nobody does. Outlives the ticket's use.
  std::atomic<bool>* news = nullptr;

  OpTicket() = default;
  OpTicket(const OpTicket&) = delete;
  OpTicket& operator=(const OpTicket&) = delete;
  ~OpTicket() { leave_table(); }

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
    member = {};
    number = 0;
    bytes = 0;
    done_at = {};
    ++use_;
    code.store(CANARY_WOULD_BLOCK, std::memory_order_relaxed);
  }

  // While nothing names it.
  void join_table(const std::shared_ptr<TicketTable>& table) {
    if (table_ == table) return;
    leave_table();
    place_ = table->add(this).place;
    table_ = table;
  }
  void leave_table() {
    if (table_ == nullptr) return;
    table_->remove(place_);
    table_.reset();
    place_ = port::kNoTicket.place;
  }
  // Names this use: a caller that names an operation which may be done by now does not mean the next one.
  port::TicketId id() const { return {place_, use_}; }

 private:
  std::shared_ptr<TicketTable> table_;
  std::uint32_t place_ = port::kNoTicket.place;
  std::uint32_t use_ = 0;
};

}  // namespace canarynet
