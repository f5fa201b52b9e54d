// tests/nccl/abi/net.h -- the net plugin ABI as NCCL 2.20 to 2.30 declares it, versions 8 to 12, written down for the
// harness.
//
// These are deliberately not the plugin's own declarations: a harness that shared them would share their mistakes.
// Member order, types and sizes follow NCCL's public headers (nccl_net.h, plugin/net/net_vN.h); every size and the
// offsets that matter are asserted. x86-64 Linux.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nccltest {

enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum LogLevel : int { kLogNone = 0, kLogVersion = 1, kLogWarn = 2, kLogInfo = 3, kLogAbort = 4, kLogTrace = 5 };
inline constexpr unsigned long kLogInit = 1;
inline constexpr unsigned long kLogNet = 0x10;

inline constexpr std::size_t kHandleBytes = 128;
inline constexpr int kMaxRequests = 32;
inline constexpr int kSteps = 8;  // requests that NCCL keeps in flight on one connection
inline constexpr std::size_t kMaxNetBytes = std::size_t{1} << 40;
inline constexpr int kPtrHost = 1;
inline constexpr int kPtrCuda = 2;
inline constexpr int kPtrDmaBuf = 4;
inline constexpr int kDeviceHost = 0;                           // ncclNetDeviceType
inline constexpr int kUndefined = -1;                           // traffic class, net attributes, rail and plane
inline constexpr std::uintptr_t kOptionalRecvCompletion = 0x1;  // a value that *request may hold on entry to irecv

// printf-like. It points to a variadic function, so its implementation has to be one as well.
using Logger = void (*)(LogLevel level, unsigned long flags, const char* file, int line, const char* format, ...);
using ProfilerCallback = Result (*)(void** event, int type, void* parent, std::int64_t plugin_id, void* data);

struct DeviceHandle {  // v7 to v12
  int net_device_type;
  int net_device_version;
  void* handle;
  std::size_t size;
  int needs_proxy_progress;
};
static_assert(sizeof(DeviceHandle) == 32 && offsetof(DeviceHandle, handle) == 8 && offsetof(DeviceHandle, size) == 16 &&
              offsetof(DeviceHandle, needs_proxy_progress) == 24);

struct VDeviceProps4 {  // v9 to v11
  int ndevs;
  int devs[4];
};
static_assert(sizeof(VDeviceProps4) == 20);
struct VDeviceProps8 {  // v12
  int ndevs;
  int devs[8];
};
static_assert(sizeof(VDeviceProps8) == 36);

struct CommConfig {  // v10 to v12
  int traffic_class;
};
static_assert(sizeof(CommConfig) == 4);

struct CommAttr {
  std::int32_t max_concurrent_peers, min_concurrent_peers, max_flows_per_peer, min_flows_per_peer;
};
struct NetAttr {  // v11, v12
  CommAttr send;
  CommAttr recv;
  std::uint32_t op, algo, proto;
};
static_assert(sizeof(CommAttr) == 16 && sizeof(NetAttr) == 44 && offsetof(NetAttr, op) == 32);

struct PropertiesV8 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int net_device_type;
  int net_device_version;
};
static_assert(sizeof(PropertiesV8) == 64 && offsetof(PropertiesV8, speed) == 32 &&
              offsetof(PropertiesV8, net_device_version) == 56);

struct PropertiesV9 {  // and v10
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int net_device_type;
  int net_device_version;
  VDeviceProps4 vprops;
  std::size_t max_p2p_bytes;
  std::size_t max_coll_bytes;
};
static_assert(sizeof(PropertiesV9) == 104 && offsetof(PropertiesV9, guid) == 16 &&
              offsetof(PropertiesV9, ptr_support) == 24 && offsetof(PropertiesV9, force_flush) == 32 &&
              offsetof(PropertiesV9, speed) == 36 && offsetof(PropertiesV9, port) == 40 &&
              offsetof(PropertiesV9, latency) == 44 && offsetof(PropertiesV9, max_comms) == 48 &&
              offsetof(PropertiesV9, max_recvs) == 52 && offsetof(PropertiesV9, net_device_type) == 56 &&
              offsetof(PropertiesV9, net_device_version) == 60 && offsetof(PropertiesV9, vprops) == 64 &&
              offsetof(PropertiesV9, max_p2p_bytes) == 88 && offsetof(PropertiesV9, max_coll_bytes) == 96);

struct PropertiesV11 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int net_device_type;
  int net_device_version;
  VDeviceProps4 vprops;
  std::size_t max_p2p_bytes;
  std::size_t max_coll_bytes;
  int max_multi_request_size;
};
static_assert(sizeof(PropertiesV11) == 112 && offsetof(PropertiesV11, max_p2p_bytes) == 88 &&
              offsetof(PropertiesV11, max_multi_request_size) == 104);

struct PropertiesV12 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int net_device_type;
  int net_device_version;
  VDeviceProps8 vprops;
  std::size_t max_p2p_bytes;
  std::size_t max_coll_bytes;
  int max_multi_request_size;
  std::int16_t rail_id;
  std::int16_t plane_id;
};
static_assert(sizeof(PropertiesV12) == 128 && offsetof(PropertiesV12, vprops) == 64 &&
              offsetof(PropertiesV12, max_p2p_bytes) == 104 && offsetof(PropertiesV12, max_coll_bytes) == 112 &&
              offsetof(PropertiesV12, max_multi_request_size) == 120 && offsetof(PropertiesV12, rail_id) == 124 &&
              offsetof(PropertiesV12, plane_id) == 126);

struct NetV8 {
  const char* name;
  Result (*init)(Logger log);
  Result (*devices)(int* count);
  Result (*get_properties)(int dev, PropertiesV8* properties);
  Result (*listen)(int dev, void* handle, void** listen_comm);
  Result (*connect)(int dev, void* handle, void** send_comm, DeviceHandle** device);
  Result (*accept)(void* listen_comm, void** recv_comm, DeviceHandle** device);
  Result (*reg_mr)(void* comm, void* data, std::size_t size, int type, void** mhandle);
  Result (*reg_mr_dma_buf)(void* comm, void* data, std::size_t size, int type, std::uint64_t offset, int fd,
                           void** mhandle);
  Result (*dereg_mr)(void* comm, void* mhandle);
  Result (*isend)(void* send_comm, void* data, int size, int tag, void* mhandle, void** request);
  Result (*irecv)(void* recv_comm, int n, void** data, int* sizes, int* tags, void** mhandles, void** request);
  Result (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** mhandles, void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void* send_comm);
  Result (*close_recv)(void* recv_comm);
  Result (*close_listen)(void* listen_comm);
  Result (*get_device_mr)(void* comm, void* mhandle, void** device_mhandle);
  Result (*irecv_consumed)(void* recv_comm, int n, void* request);
};
static_assert(sizeof(NetV8) == 152 && offsetof(NetV8, isend) == 80 && offsetof(NetV8, irecv_consumed) == 144);

struct NetV9 {
  const char* name;
  Result (*init)(Logger log);
  Result (*devices)(int* count);
  Result (*get_properties)(int dev, PropertiesV9* properties);
  Result (*listen)(int dev, void* handle, void** listen_comm);
  Result (*connect)(int dev, void* handle, void** send_comm, DeviceHandle** device);
  Result (*accept)(void* listen_comm, void** recv_comm, DeviceHandle** device);
  Result (*reg_mr)(void* comm, void* data, std::size_t size, int type, void** mhandle);
  Result (*reg_mr_dma_buf)(void* comm, void* data, std::size_t size, int type, std::uint64_t offset, int fd,
                           void** mhandle);
  Result (*dereg_mr)(void* comm, void* mhandle);
  Result (*isend)(void* send_comm, void* data, std::size_t size, int tag, void* mhandle, void** request);
  Result (*irecv)(void* recv_comm, int n, void** data, std::size_t* sizes, int* tags, void** mhandles, void** request);
  Result (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** mhandles, void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void* send_comm);
  Result (*close_recv)(void* recv_comm);
  Result (*close_listen)(void* listen_comm);
  Result (*get_device_mr)(void* comm, void* mhandle, void** device_mhandle);
  Result (*irecv_consumed)(void* recv_comm, int n, void* request);
  Result (*make_v_device)(int* dev, VDeviceProps4* properties);
};
static_assert(sizeof(NetV9) == 160 && offsetof(NetV9, make_v_device) == 152);

struct NetV10 {
  const char* name;
  Result (*init)(Logger log, ProfilerCallback profiler);
  Result (*devices)(int* count);
  Result (*get_properties)(int dev, PropertiesV9* properties);
  Result (*listen)(int dev, void* handle, void** listen_comm);
  Result (*connect)(int dev, CommConfig* config, void* handle, void** send_comm, DeviceHandle** device);
  Result (*accept)(void* listen_comm, void** recv_comm, DeviceHandle** device);
  Result (*reg_mr)(void* comm, void* data, std::size_t size, int type, void** mhandle);
  Result (*reg_mr_dma_buf)(void* comm, void* data, std::size_t size, int type, std::uint64_t offset, int fd,
                           void** mhandle);
  Result (*dereg_mr)(void* comm, void* mhandle);
  Result (*isend)(void* send_comm, void* data, std::size_t size, int tag, void* mhandle, void* phandle, void** request);
  Result (*irecv)(void* recv_comm, int n, void** data, std::size_t* sizes, int* tags, void** mhandles, void** phandles,
                  void** request);
  Result (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** mhandles, void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void* send_comm);
  Result (*close_recv)(void* recv_comm);
  Result (*close_listen)(void* listen_comm);
  Result (*get_device_mr)(void* comm, void* mhandle, void** device_mhandle);
  Result (*irecv_consumed)(void* recv_comm, int n, void* request);
  Result (*make_v_device)(int* dev, VDeviceProps4* properties);
};
static_assert(sizeof(NetV10) == 160 && offsetof(NetV10, connect) == 40);

// v11 and v12 differ only in their properties.
template <typename Properties, typename VDeviceProps>
struct NetV11Shape {
  const char* name;
  Result (*init)(void** ctx, std::uint64_t comm_id, CommConfig* config, Logger log, ProfilerCallback profiler);
  Result (*devices)(int* count);
  Result (*get_properties)(int dev, Properties* properties);
  Result (*listen)(void* ctx, int dev, void* handle, void** listen_comm);
  Result (*connect)(void* ctx, int dev, void* handle, void** send_comm, DeviceHandle** device);
  Result (*accept)(void* listen_comm, void** recv_comm, DeviceHandle** device);
  Result (*reg_mr)(void* comm, void* data, std::size_t size, int type, void** mhandle);
  Result (*reg_mr_dma_buf)(void* comm, void* data, std::size_t size, int type, std::uint64_t offset, int fd,
                           void** mhandle);
  Result (*dereg_mr)(void* comm, void* mhandle);
  Result (*isend)(void* send_comm, void* data, std::size_t size, int tag, void* mhandle, void* phandle, void** request);
  Result (*irecv)(void* recv_comm, int n, void** data, std::size_t* sizes, int* tags, void** mhandles, void** phandles,
                  void** request);
  Result (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** mhandles, void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void* send_comm);
  Result (*close_recv)(void* recv_comm);
  Result (*close_listen)(void* listen_comm);
  Result (*get_device_mr)(void* comm, void* mhandle, void** device_mhandle);
  Result (*irecv_consumed)(void* recv_comm, int n, void* request);
  Result (*make_v_device)(int* dev, VDeviceProps* properties);
  Result (*finalize)(void* ctx);
  Result (*set_net_attr)(void* ctx, NetAttr* attributes);
};
using NetV11 = NetV11Shape<PropertiesV11, VDeviceProps4>;
using NetV12 = NetV11Shape<PropertiesV12, VDeviceProps8>;
static_assert(sizeof(NetV11) == 176 && offsetof(NetV11, finalize) == 160 && offsetof(NetV11, set_net_attr) == 168);
static_assert(sizeof(NetV12) == 176);

}  // namespace nccltest
