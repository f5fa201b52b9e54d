// daemon/ipc/counters_writer.h -- the writing end of a table of counters: a memfd of this process, written by one
// thread at a time.
//
// Memory: the caller fills a private table; publish() copies the part in use to the shared one. The memfd is sealed: it
// never shrinks under a reader, and (if the kernel can do that) nobody else writes it. It goes with the writer or its
// process, whichever ends first.
// Threads: one at a time. Failures: if the system gives no memory to share, nobody reads the table and everything else
// goes on.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "base/descriptor.h"
#include "base/units.h"
#include "daemon/ipc/counters.h"

namespace canarynet::ipc {

class CountersWriter {
 public:
  // Fills in the identity of this process; the caller fills in the rest.
  explicit CountersWriter(Role role, Nanos now);
  CountersWriter(const CountersWriter&) = delete;
  CountersWriter& operator=(const CountersWriter&) = delete;
  ~CountersWriter();

  CountersTable& table() { return *table_; }
  // Makes no system call and no allocation.
  void publish(Nanos now);
  // Why nobody can read it; "" if all is well.
  const std::string& refused() const { return refused_; }

 private:
  void share();

  std::unique_ptr<CountersTable> table_;
  std::atomic<std::uint64_t>* words_ = nullptr;  // the shared table
  Descriptor memory_;
  std::string refused_;
};

}  // namespace canarynet::ipc
