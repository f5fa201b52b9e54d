// plugins/nccl/plugin_test_util.h -- for tests: the plugin file as NCCL sees it (dlopen, exported objects), one face for all versions.
//
// Net: a version's object with the differences between versions taken off. Log lines are kept by Log.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdarg>
#include <cstring>
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
using canarynet::test::sanitized;
using canarynet::test::seconds_since;
using Handle = std::array<std::byte, abi::kHandleBytes>;

class Log {
 public:
  static void line(abi::LogLevel level, unsigned long, const char*, int, const char* format, ...)
      __attribute__((format(printf, 5, 6))) {
    char text[4096];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const std::lock_guard lock(mutex());
    lines().push_back({level, text});
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

 private:
  struct Line {
    abi::LogLevel level;
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

// The file under test, loaded as NCCL does.
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

// Of a device: what NCCL reads and all versions have.
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

// Repeats until there is a request. The pointer begins as NCCL leaves it: with what was there before, or its hint.
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
// Until it is done or has failed; `bytes` as NCCL gives it: one for each receive.
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

}  // namespace canarynet::nccl::test
