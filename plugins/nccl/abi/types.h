// plugins/nccl/abi/types.h -- the types that all versions of NCCL's plugin interfaces share: results, log and profiler
// callbacks, small structs.
//
// They are declared from the published layouts for x86-64 Linux, not copied: no header of NCCL is needed to build.
// Every size and offset that NCCL relies on is asserted beside its struct. Values are NCCL's; names are ours.
#pragma once

#include <cstddef>
#include <cstdint>

namespace canarynet::nccl::abi {

enum class Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,  // a plugin must never return it
};

enum class LogLevel : int { kNone = 0, kVersion = 1, kWarn = 2, kInfo = 3, kAbort = 4, kTrace = 5 };
inline constexpr unsigned long kLogInit = 0x1, kLogNet = 0x10, kLogTuning = 0x40;

// printf-like. NCCL keeps the text of a kWarn as its last error. Takes a mutex: not for the data path.
using Logger = void (*)(LogLevel level, unsigned long flags, const char* file, int line, const char* format, ...);
using ProfilerCallback = Result (*)(void** event, int type, void* parent, std::int64_t plugin, void* description);

inline constexpr std::size_t kHandleBytes = 128;
inline constexpr int kRequestsMax = 32;  // per connection
inline constexpr int kPointerHost = 1, kPointerCuda = 2, kPointerDmaBuf = 4;
inline constexpr std::size_t kMessageBytesMax = std::size_t{1} << 40;
inline constexpr std::size_t kCollNetBytesMax = std::size_t{512} << 20;
inline constexpr std::int16_t kIdUndefined = -1;

enum class DeviceType : int { kHost = 0, kUnpack = 1, kGinProxy = 2, kGinGdaki = 3 };

template <int Devices>
struct VirtualDevice {
  int count;
  int devices[Devices];
};
static_assert(sizeof(VirtualDevice<4>) == 20 && sizeof(VirtualDevice<8>) == 36);

struct CommConfig {
  int traffic_class;  // -1: undefined
};
static_assert(sizeof(CommConfig) == 4);

struct DeviceHandle {
  DeviceType type;
  int version;
  void* handle;
  std::size_t size;
  int needs_proxy_progress;
};
static_assert(sizeof(DeviceHandle) == 32);
static_assert(offsetof(DeviceHandle, handle) == 8 && offsetof(DeviceHandle, size) == 16);
static_assert(offsetof(DeviceHandle, needs_proxy_progress) == 24);

struct CommAttributes {
  std::int32_t concurrent_peers_max;
  std::int32_t concurrent_peers_min;
  std::int32_t flows_per_peer_max;
  std::int32_t flows_per_peer_min;
};
struct NetAttributes {
  CommAttributes send;
  CommAttributes receive;
  std::uint32_t operations, algorithms, protocols;  // bit masks
};
static_assert(sizeof(CommAttributes) == 16 && sizeof(NetAttributes) == 44);
static_assert(offsetof(NetAttributes, receive) == 16 && offsetof(NetAttributes, operations) == 32);

}  // namespace canarynet::nccl::abi
