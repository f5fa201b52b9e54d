// tests/nccl/baseline_plugin/transport.h -- the scheme of NCCL's built-in socket transport, written anew for
// comparison.
//
// A connection has one control socket, and helper threads with further sockets if asked for. A message is its size (4
// bytes) on the control socket. Data of at most 128 bytes follows there; longer data is cut in equal parts of at least
// 64 KiB over the data sockets (on the control socket if there are none). All I/O of a message starts inside test(),
// and NCCL tests only the oldest, so a connection moves one message at a time. There is no failover: any error of a
// socket ends the connection. Settings (environment):
//   BASELINE_NTHREADS, BASELINE_NSOCKS_PERTHREAD  helper threads and sockets of each [0, 1]
//   BASELINE_ALL_NICS=1     one device over all NICs: one data socket (and helper) per NIC at least, equal parts [0: a
//                           device per NIC]
//   BASELINE_HELPER=poll    helpers that wait in poll() instead of spinning, which is kinder to small machines [spin]
//   BASELINE_SOCKET_IFNAME  NCCL's grammar: prefixes, ^ excludes, = exact [all but lo; lo if there is nothing else]
//   BASELINE_TCP_CONGESTION, else CANARY_TCP_CONGESTION  as given to the others in the same run
#pragma once

#include <netinet/in.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/nccl/abi/net.h"

namespace nccltest::baseline {

inline constexpr int kMaxSockets = 64;
inline constexpr int kMaxNics = 12;
inline constexpr std::size_t kInlineBytes = 128;
inline constexpr std::size_t kMinTaskBytes = 64 << 10;

struct Nic {
  std::string name;
  in_addr address;
  int speed_mbit;
};
std::vector<Nic> find_nics();

struct Config {
  int threads = 0;
  int sockets = 0;  // data sockets: threads x sockets of each
  bool all_nics = false;
  bool helpers_poll = false;
  std::string congestion;
};
Config read_config(std::size_t nics);

// The content that listen writes into NCCL's 128 bytes. Addresses in network byte order.
struct Handle {
  std::uint64_t magic;
  std::uint64_t nonce;  // of this listener; each socket says it first
  std::uint16_t port;
  std::uint8_t nics;
  std::uint8_t sockets;
  std::uint8_t threads;
  std::uint8_t zero[3];
  std::uint32_t addresses[kMaxNics];
  std::uint8_t rest[56];
};
static_assert(sizeof(Handle) == kHandleBytes);
inline constexpr std::uint64_t kMagic = 0x31656E696C657361;  // "aseline1"

struct Hello {
  std::uint64_t nonce;
  std::uint32_t index;  // sockets: control
  std::uint32_t zero;
};

void set_logger(Logger log);
Logger logger();
#define BASELINE_WARN(...)                                                          \
  do {                                                                              \
    if (const auto warn = nccltest::baseline::logger()) {                           \
      warn(nccltest::kLogWarn, nccltest::kLogNet, __FILE__, __LINE__, __VA_ARGS__); \
    }                                                                               \
  } while (false)

// A part of a message on one data socket. test() fills it in, a helper moves it.
struct Task {
  int fd = -1;
  char* data = nullptr;
  std::size_t size = 0;
  std::size_t offset = 0;
  bool sends = false;
  std::atomic<int> state{0};  // 0 moving, 1 done, else -errno (EPIPE for the end of the stream)
};

// A helper thread with its sockets' tasks. A task stays the caller's until it is done or the helper is gone.
class Helper {
 public:
  explicit Helper(bool polls);
  ~Helper();
  void add(Task* task);

 private:
  void loop();
  const bool polls_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Task*> added_;
  std::atomic<bool> incoming_{false}, stop_{false};
  int wake_ = -1;
  std::thread thread_;
};

class Comm;
struct Request {
  Comm* comm = nullptr;
  bool used = false;
  char* data = nullptr;
  std::size_t size = 0;    // of a receive: the bound, then what is sent
  std::size_t offset = 0;  // header and data on the control socket
  bool header_done = false;
  char header[4 + kInlineBytes];
  std::vector<std::unique_ptr<Task>> tasks;
};

class Comm {
 public:
  Comm(bool sends, int control, std::vector<int> sockets, int threads, bool polls, std::string peer);
  ~Comm();
  // Returns NULL if all requests are in use.
  Request* take(void* data, std::size_t size);
  Result test(Request& request, int* done, int* sizes);

 private:
  Result header(Request& request);
  Result on_control(Request& request);
  void split(Request& request);
  Result broken(const char* what, int error);

  const bool sends_;
  const int control_;
  const std::vector<int> sockets_;
  const std::string peer_;
  std::vector<std::unique_ptr<Helper>> helpers_;
  std::size_t next_socket_ = 0;
  Request requests_[kMaxRequests];
};

struct Listener {
  int fd = -1;
  Handle handle{};
  bool polls = false;
  struct Half {
    int fd;
    Hello hello;
    std::size_t got;
  };
  std::vector<Half> halves;  // accepted, hello not whole yet
  std::vector<int> sockets;  // by index; -1: still missing
  std::string congestion;
  ~Listener();
};

struct Connecting {
  Handle handle{};
  std::vector<int> sockets;  // by index, the control socket last
  std::vector<std::size_t> said;
  std::vector<bool> up;
  std::uint64_t begin_ns = 0;
  ~Connecting();
};

// NULL with *result success: call again.
std::unique_ptr<Listener> listen_on(const std::vector<Nic>& nics, int dev, const Config& config, Result* result);
std::unique_ptr<Comm> accept_from(Listener& listener, Result* result);
std::unique_ptr<Connecting> begin_connect(const Handle& handle, const Config& config, Result* result);
std::unique_ptr<Comm> go_on_connecting(Connecting& connecting, const Config& config, Result* result);

}  // namespace nccltest::baseline
