// plugins/nccl/plugin_test_util.h -- for tests: the plugin file as NCCL sees it (dlopen, exported objects), one face
// for all versions.
//
// Net wraps a version's object and hides the differences between versions. Log keeps log lines. Processes with an
// environment of their own, or as peers, are forked: make them while the plugin has no thread in this one.
#pragma once

#include <dirent.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "embed/job_test_util.h"
#include "plugins/nccl/abi/net.h"
#include "plugins/nccl/abi/tuner.h"

namespace canarynet::nccl::test {

using abi::Result;
using canarynet::test::Process;
using canarynet::test::sanitized;
using canarynet::test::seconds_since;
using Handle = std::array<std::byte, abi::kHandleBytes>;
using Environment = std::vector<std::pair<const char*, const char*>>;

class Log {
 public:
  static void line(abi::LogLevel level, unsigned long, const char* file, int number, const char* format, ...)
      __attribute__((format(printf, 5, 6))) {
    char text[4096];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const std::lock_guard lock(mutex());
    lines().push_back({level, file, number, text});
  }
  static void clear() {
    const std::lock_guard lock(mutex());
    lines().clear();
  }
  // All lines of this level, one below the other.
  static std::string text(abi::LogLevel level = abi::LogLevel::kWarn) {
    const std::lock_guard lock(mutex());
    std::string out;
    for (const auto& l : lines()) {
      if (l.level == level) out += l.text + "\n";
    }
    return out;
  }
  struct Place {
    std::string file;
    int line;
  };
  // The place that the first line with this part names as its origin.
  static Place place_of(const std::string& part) {
    const std::lock_guard lock(mutex());
    for (const auto& l : lines()) {
      if (l.text.find(part) != std::string::npos) return {l.file, l.number};
    }
    return {"no line has it", -1};
  }

 private:
  struct Line {
    abi::LogLevel level;
    std::string file;
    int number;
    std::string text;
  };
  static std::mutex& mutex() {
    static std::mutex m;
    return m;
  }
  static std::vector<Line>& lines() {
    static std::vector<Line> l;
    return l;
  }
};

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The file under test, loaded as NCCL loads it.
inline void* library() {
  static void* const loaded = [] {
    void* const l = dlopen(CANARY_NCCL_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    if (l == nullptr) ADD_FAILURE() << dlerror();
    return l;
  }();
  return loaded;
}
template <typename Object>
const Object& exported(const char* name) {
  const auto* const object = static_cast<const Object*>(dlsym(library(), name));
  if (object == nullptr) {
    std::fprintf(stderr, "%s is not exported\n", name);
    std::abort();
  }
  return *object;
}

// The properties of a device that NCCL reads and all versions have.
struct Properties {
  std::string name;
  int speed_mbit = 0;
  int receives_max = 0;
  int pointer_support = 0;
};

class Net {
 public:
  virtual ~Net() = default;
  virtual int version() const = 0;
  virtual Result init(void** context) const = 0;
  virtual Result finalize(void* context) const = 0;  // nothing before v11
  virtual Result properties(int device, Properties* out) const = 0;
  virtual Result devices(int* count) const = 0;
  virtual Result listen(void* context, void* handle, void** comm) const = 0;
  virtual Result connect(void* context, void* handle, void** comm) const = 0;
  virtual Result accept(void* listener, void** comm) const = 0;
  virtual Result register_memory(void* comm, void* data, std::size_t bytes, int type, void** mr) const = 0;
  virtual Result deregister(void* comm, void* mr) const = 0;
  virtual Result isend(void* comm, const void* data, std::size_t bytes, int tag, void* mr, void** request) const = 0;
  virtual Result irecv(void* comm, std::vector<void*> data, std::vector<std::size_t> bytes, std::vector<int> tags,
                       void** request) const = 0;
  virtual Result iflush(void* comm, void** request) const = 0;
  virtual Result test(void* request, int* done, int* bytes) const = 0;
  virtual Result close_send(void* comm) const = 0;
  virtual Result close_receive(void* comm) const = 0;
  virtual Result close_listen(void* comm) const = 0;
};

template <typename Object, typename AbiProperties, int Version>
class NetOf final : public Net {
 public:
  NetOf() : o_(exported<Object>(("ncclNetPlugin_v" + std::to_string(Version)).c_str())) {}
  int version() const override { return Version; }
  Result init(void** context) const override {
    *context = nullptr;
    if constexpr (Version >= 11) {
      abi::CommConfig config{-1};
      return o_.init(context, 42, &config, Log::line, nullptr);
    } else if constexpr (Version == 10) {
      return o_.init(Log::line, nullptr);
    } else {
      return o_.init(Log::line);
    }
  }
  Result finalize(void* context) const override {
    if constexpr (Version >= 11) return o_.finalize(context);
    return context == nullptr ? Result::kSuccess : Result::kInternalError;
  }
  Result properties(int device, Properties* out) const override {
    AbiProperties p;
    std::memset(&p, 0xEE, sizeof p);
    const Result r = o_.get_properties(device, &p);
    if (r != Result::kSuccess) return r;
    *out = {p.name, p.speed_mbit, p.receives_max, p.pointer_support};
    EXPECT_EQ(p.pci_path, nullptr);
    if constexpr (Version >= 9) {
      EXPECT_EQ(p.virtual_device.count, 1);
      EXPECT_EQ(p.virtual_device.devices[0], 0);
      EXPECT_GT(p.message_bytes_max, 0u);
      EXPECT_LE(p.message_bytes_max, abi::kMessageBytesMax);
    }
    EXPECT_EQ(p.device_type, abi::DeviceType::kHost);
    return r;
  }
  Result devices(int* count) const override { return o_.devices(count); }
  Result listen(void* context, void* handle, void** comm) const override {
    if constexpr (Version >= 11)
      return o_.listen(context, 0, handle, comm);
    else
      return o_.listen(0, handle, comm);
  }
  Result connect(void* context, void* handle, void** comm) const override {
    abi::DeviceHandle* device = nullptr;
    [[maybe_unused]] abi::CommConfig config{-1};
    if constexpr (Version >= 11)
      return o_.connect(context, 0, handle, comm, &device);
    else if constexpr (Version == 10)
      return o_.connect(0, &config, handle, comm, &device);
    else
      return o_.connect(0, handle, comm, &device);
  }
  Result accept(void* listener, void** comm) const override {
    abi::DeviceHandle* device = nullptr;
    return o_.accept(listener, comm, &device);
  }
  Result register_memory(void* comm, void* data, std::size_t bytes, int type, void** mr) const override {
    return o_.register_memory(comm, data, bytes, type, mr);
  }
  Result deregister(void* comm, void* mr) const override { return o_.deregister_memory(comm, mr); }
  Result isend(void* comm, const void* data, std::size_t bytes, int tag, void* mr, void** request) const override {
    void* const d = const_cast<void*>(data);
    if constexpr (Version >= 10)
      return o_.isend(comm, d, bytes, tag, mr, nullptr, request);
    else if constexpr (Version == 9)
      return o_.isend(comm, d, bytes, tag, mr, request);
    else
      return o_.isend(comm, d, static_cast<int>(bytes), tag, mr, request);
  }
  Result irecv(void* comm, std::vector<void*> data, std::vector<std::size_t> bytes, std::vector<int> tags,
               void** request) const override {
    const int n = static_cast<int>(data.size());
    std::vector<void*> registrations(data.size()), profilers(data.size());
    if constexpr (Version >= 10) {
      return o_.irecv(comm, n, data.data(), bytes.data(), tags.data(), registrations.data(), profilers.data(), request);
    } else if constexpr (Version == 9) {
      return o_.irecv(comm, n, data.data(), bytes.data(), tags.data(), registrations.data(), request);
    } else {
      std::vector<int> as_int(bytes.begin(), bytes.end());
      return o_.irecv(comm, n, data.data(), as_int.data(), tags.data(), registrations.data(), request);
    }
  }
  Result iflush(void* comm, void** request) const override {
    void* data = nullptr;
    int bytes = 0;
    void* registration = nullptr;
    return o_.iflush(comm, 1, &data, &bytes, &registration, request);
  }
  Result test(void* request, int* done, int* bytes) const override { return o_.test(request, done, bytes); }
  Result close_send(void* comm) const override { return o_.close_send(comm); }
  Result close_receive(void* comm) const override { return o_.close_receive(comm); }
  Result close_listen(void* comm) const override { return o_.close_listen(comm); }

 private:
  const Object& o_;
};

inline std::unique_ptr<Net> net_of(int version) {
  switch (version) {
    case 8:
      return std::make_unique<NetOf<abi::NetV8, abi::PropertiesV8, 8>>();
    case 9:
      return std::make_unique<NetOf<abi::NetV9, abi::PropertiesV9, 9>>();
    case 10:
      return std::make_unique<NetOf<abi::NetV10, abi::PropertiesV10, 10>>();
    case 11:
      return std::make_unique<NetOf<abi::NetV11, abi::PropertiesV11, 11>>();
    default:
      return std::make_unique<NetOf<abi::NetV12, abi::PropertiesV12, 12>>();
  }
}

template <typename Done>
bool poll_until(Done done, double seconds = sanitized() ? 60 : 20) {
  const auto began = std::chrono::steady_clock::now();
  while (!done()) {
    if (seconds_since(began) > seconds) return false;
    std::this_thread::yield();
  }
  return true;
}

// A connection within this process, from one context to another (or the same).
struct Ends {
  void* send = nullptr;
  void* receive = nullptr;
};
inline Ends join(const Net& net, void* from, void* to) {
  Handle handle;
  std::memset(handle.data(), 0xEE, handle.size());
  Ends e;
  void* listener = nullptr;
  EXPECT_EQ(net.listen(to, handle.data(), &listener), Result::kSuccess) << Log::text();
  EXPECT_NE(listener, nullptr);
  const bool met = poll_until([&] {
    if (e.send == nullptr) {
      EXPECT_EQ(net.connect(from, handle.data(), &e.send), Result::kSuccess) << Log::text();
    }
    if (e.receive == nullptr) {
      EXPECT_EQ(net.accept(listener, &e.receive), Result::kSuccess) << Log::text();
    }
    return (e.send != nullptr && e.receive != nullptr) || testing::Test::HasFailure();
  });
  EXPECT_TRUE(met);
  EXPECT_EQ(net.close_listen(listener), Result::kSuccess);
  return e;
}

// Repeats until there is a request. The pointer begins as NCCL leaves it: with its previous value, or its hint.
inline void* send(const Net& net, void* comm, const void* data, std::size_t bytes, int tag = 0) {
  void* request = nullptr;
  poll_until([&] {
    request = reinterpret_cast<void*>(0x1);
    EXPECT_EQ(net.isend(comm, data, bytes, tag, nullptr, &request), Result::kSuccess) << Log::text();
    return request != nullptr;
  });
  EXPECT_NE(request, reinterpret_cast<void*>(0x1));
  return request;
}
inline void* receive(const Net& net, void* comm, void* data, std::size_t bytes) {
  void* request = nullptr;
  poll_until([&] {
    request = reinterpret_cast<void*>(0x1);
    EXPECT_EQ(net.irecv(comm, {data}, {bytes}, {0}, &request), Result::kSuccess) << Log::text();
    return request != nullptr;
  });
  EXPECT_NE(request, reinterpret_cast<void*>(0x1));
  return request;
}
// Waits until the request is done or has failed; `bytes` as NCCL gives it: one for each receive.
inline Result wait(const Net& net, void* request, int* bytes = nullptr) {
  Result result = Result::kSuccess;
  EXPECT_TRUE(poll_until([&] {
    int done = 77;
    result = net.test(request, &done, bytes);
    EXPECT_NE(done, 77);
    return result != Result::kSuccess || done == 1;
  }));
  return result;
}

inline std::vector<std::uint8_t> bytes_of(std::uint64_t seed, std::size_t size) {
  std::vector<std::uint8_t> out(size);
  std::uint64_t x = seed * 0x9e3779b97f4a7c15ull + 1;
  for (auto& b : out) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    b = static_cast<std::uint8_t>(x >> 32);
  }
  return out;
}

// --- this process ----------------------------------------------------------------------------------------------------

// The number of the plugin's threads.
inline int library_threads() {
  int found = 0;
  DIR* tasks = opendir("/proc/self/task");
  for (const dirent* d = nullptr; (d = readdir(tasks)) != nullptr;) {
    std::ifstream comm("/proc/self/task/" + std::string(d->d_name) + "/comm");
    std::string name;
    found += std::getline(comm, name) && name.starts_with("canary");
  }
  closedir(tasks);
  return found;
}

// The kernel removes a thread's entry a moment after it was joined.
inline bool no_library_threads() {
  return poll_until([] { return library_threads() == 0; });
}

inline std::size_t open_files() {
  std::size_t n = 0;
  DIR* d = opendir("/proc/self/fd");
  while (readdir(d) != nullptr) ++n;
  closedir(d);
  return n;
}

inline bool exchange(const Net& net, const Ends& e) {
  const auto out = bytes_of(7, 300'000);
  std::vector<std::uint8_t> in(out.size());
  void* r = receive(net, e.receive, in.data(), in.size());
  void* s = send(net, e.send, out.data(), out.size());
  return wait(net, s) == Result::kSuccess && wait(net, r) == Result::kSuccess && in == out;
}

inline void close(const Net& net, const Ends& e) {
  EXPECT_EQ(net.close_send(e.send), Result::kSuccess);
  EXPECT_EQ(net.close_receive(e.receive), Result::kSuccess);
}

// Runs `body` in a process with these variables. It returns "" if all is well.
inline std::string in_process(const Environment& environment, const std::function<std::string()>& body) {
  Process p([&]() -> std::string {
    for (const auto& [name, value] : environment) {
      if (value != nullptr) setenv(name, value, 1);
      if (value == nullptr) unsetenv(name);
    }
    const std::string said = body();
    return said.empty() ? "fine" : said + "\nwarnings: " + Log::text();
  });
  return p.report();
}

// --- other processes -------------------------------------------------------------------------------------------------

inline void write_all(int fd, const void* data, std::size_t bytes) {
  ASSERT_EQ(::write(fd, data, bytes), static_cast<ssize_t>(bytes));
}
inline void read_all(int fd, void* data, std::size_t bytes) {
  for (std::size_t got = 0; got < bytes;) {
    const ssize_t n = ::read(fd, static_cast<char*>(data) + got, bytes - got);
    ASSERT_GT(n, 0);
    got += static_cast<std::size_t>(n);
  }
}

// Both directions between two processes, as NCCL makes them: each listens, gives its handle away, and connects.
struct Pair {
  void* send = nullptr;
  void* receive = nullptr;
};
inline Pair meet(const Net& net, void* context, int from_other, int to_other) {
  Handle mine{}, theirs{};
  void* listener = nullptr;
  EXPECT_EQ(net.listen(context, mine.data(), &listener), Result::kSuccess) << Log::text();
  write_all(to_other, mine.data(), mine.size());
  read_all(from_other, theirs.data(), theirs.size());
  Pair p;
  EXPECT_TRUE(poll_until([&] {
    if (p.send == nullptr) {
      EXPECT_EQ(net.connect(context, theirs.data(), &p.send), Result::kSuccess) << Log::text();
    }
    if (p.receive == nullptr) {
      EXPECT_EQ(net.accept(listener, &p.receive), Result::kSuccess) << Log::text();
    }
    return (p.send != nullptr && p.receive != nullptr) || testing::Test::HasFailure();
  }));
  EXPECT_EQ(net.close_listen(listener), Result::kSuccess);
  return p;
}

struct Pipes {
  int down[2], up[2];  // to the child, from the child
  Pipes() {
    EXPECT_EQ(pipe(down), 0);
    EXPECT_EQ(pipe(up), 0);
  }
  ~Pipes() {
    for (const int fd : {down[0], down[1], up[0], up[1]}) ::close(fd);
  }
};

}  // namespace canarynet::nccl::test
