// tests/nccl/communicator.h -- one NCCL communicator of this rank: its service thread, its progress thread, its
// connections.
//
// The owner (NCCL's user thread) calls the members below, one after another. fail() records failures, and the result
// tells of them.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/nccl/bootstrap.h"
#include "tests/nccl/endpoint.h"
#include "tests/nccl/options.h"

namespace nccltest {

// A thread that does one thing at a time while the caller waits.
class ServiceThread {
 public:
  ServiceThread();
  ~ServiceThread();
  void run(const std::function<void()>& work);

 private:
  void loop();
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* work_ = nullptr;
  bool stop_ = false;
  std::thread thread_;
};

struct ConnectOutcome {
  bool connected = false;
  Result result = kSuccess;  // the first error of listen, connect, accept or regMr
  std::string call;
  double seconds = 0;
};

// The error that ended the progress thread before its time.
struct ProgressError {
  Result result = kSuccess;
  std::string call;
  int peer = -1;
  std::uint64_t at_ns = 0;
};

class Communicator {
 public:
  // `index`: which communicator of the process; `generation`: how many it had under that index before.
  Communicator(Net& net, const Options& options, int index, int generation = 0);
  ~Communicator();

  // Calls init, and looks at the devices as NCCL does.
  bool init();
  // Listens, exchanges handles, connects and accepts in a tight loop, and registers. Errors of the plugin are in the
  // outcome and, unless `may_fail`, recorded as failures.
  ConnectOutcome connect(bool may_fail = false, const std::function<void()>& after_listen = {});
  bool meet();  // joins the ranks' bootstrap; connect() does it if it has not been done

  void start(std::uint64_t messages_per_connection);  // ~0: until stop or finish
  // Waits until all connections have consumed their messages, or the progress thread ended with an error or without
  // progress.
  bool wait(double seconds_max);
  // Ends unlimited traffic cleanly: posting stops on both sides, which then agree on a last message and finish it.
  bool finish(double seconds_max);
  void stop();  // at once, with requests in flight
  bool failed() const { return error_at_ns_.load(std::memory_order_acquire) != 0; }
  // A copy of the error; its result is kSuccess while there is none.
  ProgressError error();
  bool wait_for_error(double seconds);

  // Deregisters and closes everything on the service thread; closes that take longer than `seconds_max` are failures.
  void close(double seconds_max = 3);
  void finalize(double seconds_max = 3);
  // Records as failures any bytes written to receive buffers after they were closed.
  void check_untouched();

  Bootstrap& bootstrap() { return bootstrap_; }
  const std::vector<std::unique_ptr<Endpoint>>& endpoints() const { return endpoints_; }
  std::uint64_t received_bytes() const;
  std::uint64_t received_messages() const;
  std::uint64_t sent_bytes() const;
  double progress_cpu_seconds();  // of the progress thread
  void* ctx() const { return ctx_; }
  Net& net() { return net_; }
  ServiceThread& service() { return service_; }
  int device_count() const { return devices_; }
  bool check_properties(int dev);

 private:
  void make_endpoints();
  void progress_loop();
  int dev_of(int channel) const;

  Net& net_;
  const Options& options_;
  const int rank_;
  const int index_;
  const int generation_;
  void* ctx_ = nullptr;
  bool initialised_ = false;
  bool met_ = false;
  int devices_ = 0;
  Bootstrap bootstrap_;
  ServiceThread service_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  std::vector<int> channels_;
  std::vector<void*> listeners_;

  enum Command : int { kRun, kFreeze, kStop };
  std::thread progress_;
  std::atomic<int> command_{kRun};
  std::atomic<bool> frozen_{false};
  std::atomic<bool> progress_ended_{true};
  std::atomic<std::uint64_t> error_at_ns_{0};
  std::mutex error_mutex_;
  ProgressError error_;
};

double seconds_between(std::uint64_t begin_ns, std::uint64_t end_ns);
void sleep_us(long us);
void exact_sleeps();  // of the calling thread: no timer slack
void idle(long us);   // Options::idle_sleep_us

}  // namespace nccltest
