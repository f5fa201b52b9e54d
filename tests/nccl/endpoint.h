// tests/nccl/endpoint.h -- one connection's end as NCCL's proxy sees it: eight slots, of which it tests the oldest
// request first.
//
// The service thread calls connect, registration and close, the progress thread alone calls step(), and any thread may
// read the counters. Buffers are the endpoint's; they outlive close, so that bytes written after it are seen.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/nccl/net.h"
#include "tests/nccl/traffic.h"

namespace nccltest {

enum class Check {
  kNone,    // measures what the plugin costs, without the harness's own checks
  kSample,  // the first and last bytes of each message
  kFull,    // every byte, also those behind the message
};

struct EndpointOptions {
  bool sends = false;
  int peer = 0;
  int tag = 0;                   // the sender's rank
  std::uint64_t connection = 0;  // the same number at both ends, no two alike
  int dev = 0;
  int depth = kSteps;
  int group = 1;  // receives of one irecv
  Check check = Check::kFull;
  std::uint64_t gap_ns_min = 0;  // shortest pause between two receptions that is written down; 0: none are
};

struct Gap {
  std::uint64_t begin_ns;
  std::uint64_t end_ns;
};

class Endpoint {
 public:
  Endpoint(Net& net, const EndpointOptions& options, const Traffic& traffic);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  const EndpointOptions& options() const { return options_; }
  bool connected() const { return comm_ != nullptr; }
  void set_comm(void* comm) { comm_ = comm; }
  Result register_buffers();
  Result deregister_buffers();
  Result close();
  // Whether nothing wrote to a receive buffer since close() poisoned it.
  bool untouched_since_close() const;

  // Posts at most one message and tests at most one request. Returns true if anything moved. It must not be called
  // again after an error (kept below).
  bool step(std::uint64_t now_ns, bool may_post);
  Result error() const { return error_; }
  const std::string& error_call() const { return error_call_; }

  // Messages: posted (taken by the plugin), consumed (done, checked, landed), and where posting ends.
  std::uint64_t posted() const { return posted_.load(std::memory_order_acquire); }
  std::uint64_t consumed() const { return consumed_.load(std::memory_order_acquire); }
  std::uint64_t bytes() const { return bytes_.load(std::memory_order_acquire); }
  std::uint64_t limit() const { return limit_.load(std::memory_order_acquire); }
  void set_limit(std::uint64_t messages) { limit_.store(messages, std::memory_order_release); }
  bool finished() const { return consumed() >= limit(); }
  const std::vector<Gap>& gaps() const { return gaps_; }  // once the progress thread has ended

 private:
  struct Slot {
    void* request[Net::kMaxGroup] = {};  // a group of receives has one, each send its own
    Message message[Net::kMaxGroup];
    unsigned char* data[Net::kMaxGroup] = {};
    std::uint64_t deadline_ns = 0;  // hinted and reported done, bytes still to come
    bool hinted = false;
  };
  struct Area {
    unsigned char* data = nullptr;
    std::size_t slot_bytes = 0;  // without the guard
    std::size_t stride = 0;
    std::size_t mapped = 0;
    void* mhandle = nullptr;
    bool registered = false;
  };

  Slot& slot(std::uint64_t message) { return slots_[(message / group()) % static_cast<std::uint64_t>(options_.depth)]; }
  std::uint64_t group() const { return static_cast<std::uint64_t>(options_.group); }
  bool post(std::uint64_t now_ns);
  bool post_send(Slot& slot, std::uint64_t sequence);
  bool post_receive(Slot& slot, std::uint64_t sequence);
  bool test_oldest(std::uint64_t now_ns);
  bool land(std::uint64_t now_ns);
  bool stop(const char* call, Result result);
  std::uint64_t sent_sequence(std::uint64_t sequence) const;
  int tag_of(std::uint64_t sequence) const;
  bool arrived(Slot& slot, std::uint64_t sequence, bool report);

  Net& net_;
  const EndpointOptions options_;
  const Traffic traffic_;
  void* comm_ = nullptr;
  Area areas_[kProtocolBuffers];
  std::vector<Slot> slots_;
  std::uint64_t prepared_ = 0;  // the slot of this message is filled (or poisoned) already
  std::uint64_t tested_ = 0;
  std::uint64_t last_consumed_ns_ = 0;
  std::vector<Gap> gaps_;
  Result error_ = kSuccess;
  std::string error_call_;
  bool closed_ = false;
  std::atomic<std::uint64_t> posted_{0}, consumed_{0}, bytes_{0}, limit_{~std::uint64_t{0}};
};

std::uint64_t now_ns();  // CLOCK_MONOTONIC: the same in all processes of the machine

}  // namespace nccltest
