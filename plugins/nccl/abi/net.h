// plugins/nccl/abi/net.h -- the objects ncclNetPlugin_v8 to _v12 and their properties.
//
// Versions differ in few members, so each is its own struct over shared shapes: the arguments of init, listen, connect,
// isend and irecv, and the members that follow. NCCL reads these as plain arrays of pointers: order and size are the
// contract.
#pragma once

#include "plugins/nccl/abi/types.h"

namespace canarynet::nccl::abi {

// --- properties ------------------------------------------------------------------------------------------------------

struct PropertiesV8 {
  const char* name;
  const char* pci_path;
  std::uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int speed_mbit;
  int port;
  float latency_us;
  int comms_max;
  int receives_max;
  DeviceType device_type;
  int device_version;
};
static_assert(sizeof(PropertiesV8) == 64);
static_assert(offsetof(PropertiesV8, pointer_support) == 24 && offsetof(PropertiesV8, speed_mbit) == 32);
static_assert(offsetof(PropertiesV8, latency_us) == 40 && offsetof(PropertiesV8, device_version) == 56);

struct PropertiesV9 {
  const char* name;
  const char* pci_path;
  std::uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int force_flush;
  int speed_mbit;
  int port;
  float latency_us;
  int comms_max;
  int receives_max;
  DeviceType device_type;
  int device_version;
  VirtualDevice<4> virtual_device;
  std::size_t message_bytes_max;
  std::size_t collnet_bytes_max;
};
using PropertiesV10 = PropertiesV9;
static_assert(sizeof(PropertiesV9) == 104);
static_assert(offsetof(PropertiesV9, pci_path) == 8 && offsetof(PropertiesV9, guid) == 16);
static_assert(offsetof(PropertiesV9, pointer_support) == 24 && offsetof(PropertiesV9, registration_is_global) == 28);
static_assert(offsetof(PropertiesV9, force_flush) == 32 && offsetof(PropertiesV9, speed_mbit) == 36);
static_assert(offsetof(PropertiesV9, port) == 40 && offsetof(PropertiesV9, latency_us) == 44);
static_assert(offsetof(PropertiesV9, comms_max) == 48 && offsetof(PropertiesV9, receives_max) == 52);
static_assert(offsetof(PropertiesV9, device_type) == 56 && offsetof(PropertiesV9, device_version) == 60);
static_assert(offsetof(PropertiesV9, virtual_device) == 64 && offsetof(PropertiesV9, message_bytes_max) == 88);
static_assert(offsetof(PropertiesV9, collnet_bytes_max) == 96);

struct PropertiesV11 {
  const char* name;
  const char* pci_path;
  std::uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int force_flush;
  int speed_mbit;
  int port;
  float latency_us;
  int comms_max;
  int receives_max;
  DeviceType device_type;
  int device_version;
  VirtualDevice<4> virtual_device;
  std::size_t message_bytes_max;
  std::size_t collnet_bytes_max;
  int multi_request_max;
};
static_assert(sizeof(PropertiesV11) == 112);
static_assert(offsetof(PropertiesV11, virtual_device) == 64 && offsetof(PropertiesV11, message_bytes_max) == 88);
static_assert(offsetof(PropertiesV11, collnet_bytes_max) == 96 && offsetof(PropertiesV11, multi_request_max) == 104);

struct PropertiesV12 {
  const char* name;
  const char* pci_path;
  std::uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int force_flush;
  int speed_mbit;
  int port;
  float latency_us;
  int comms_max;
  int receives_max;
  DeviceType device_type;
  int device_version;
  VirtualDevice<8> virtual_device;
  std::size_t message_bytes_max;
  std::size_t collnet_bytes_max;
  int multi_request_max;
  std::int16_t rail;
  std::int16_t plane;
};
static_assert(sizeof(PropertiesV12) == 128);
static_assert(offsetof(PropertiesV12, virtual_device) == 64 && offsetof(PropertiesV12, message_bytes_max) == 104);
static_assert(offsetof(PropertiesV12, collnet_bytes_max) == 112 && offsetof(PropertiesV12, multi_request_max) == 120);
static_assert(offsetof(PropertiesV12, rail) == 124 && offsetof(PropertiesV12, plane) == 126);

// --- functions -------------------------------------------------------------------------------------------------------

using DevicesFn = Result (*)(int* count);
using AcceptFn = Result (*)(void* listen_comm, void** receive_comm, DeviceHandle** device_comm);
using RegisterFn = Result (*)(void* comm, void* data, std::size_t bytes, int type, void** registration);
using RegisterDmaBufFn = Result (*)(void* comm, void* data, std::size_t bytes, int type, std::uint64_t offset, int fd,
                                    void** registration);
using DeregisterFn = Result (*)(void* comm, void* registration);
using FlushFn = Result (*)(void* receive_comm, int count, void** data, int* bytes, void** registrations,
                           void** request);
using TestFn = Result (*)(void* request, int* done, int* bytes);
using CloseFn = Result (*)(void* comm);
using GetDeviceMrFn = Result (*)(void* comm, void* registration, void** device_registration);
using ConsumedFn = Result (*)(void* receive_comm, int count, void* request);

// From v10 on it has a handle for the profiler; before that a number of bytes as int (v8) or size_t (v9).
template <typename Size>
using SendPlainFn = Result (*)(void* send_comm, void* data, Size bytes, int tag, void* registration, void** request);
template <typename Size>
using ReceivePlainFn = Result (*)(void* receive_comm, int count, void** data, Size* bytes, int* tags,
                                  void** registrations, void** request);
using SendFn = Result (*)(void* send_comm, void* data, std::size_t bytes, int tag, void* registration, void* profiler,
                          void** request);
using ReceiveFn = Result (*)(void* receive_comm, int count, void** data, std::size_t* bytes, int* tags,
                             void** registrations, void** profilers, void** request);

using ListenPlainFn = Result (*)(int device, void* handle, void** listen_comm);
using ConnectPlainFn = Result (*)(int device, void* handle, void** send_comm, DeviceHandle** device_comm);

// --- the objects -----------------------------------------------------------------------------------------------------

struct NetV8 {
  const char* name;
  Result (*init)(Logger);
  DevicesFn devices;
  Result (*get_properties)(int device, PropertiesV8*);
  ListenPlainFn listen;
  ConnectPlainFn connect;
  AcceptFn accept;
  RegisterFn register_memory;
  RegisterDmaBufFn register_dma_buf;
  DeregisterFn deregister_memory;
  SendPlainFn<int> isend;
  ReceivePlainFn<int> irecv;
  FlushFn iflush;
  TestFn test;
  CloseFn close_send;
  CloseFn close_receive;
  CloseFn close_listen;
  GetDeviceMrFn get_device_mr;
  ConsumedFn receive_consumed;
};
static_assert(sizeof(NetV8) == 152);

struct NetV9 {
  const char* name;
  Result (*init)(Logger);
  DevicesFn devices;
  Result (*get_properties)(int device, PropertiesV9*);
  ListenPlainFn listen;
  ConnectPlainFn connect;
  AcceptFn accept;
  RegisterFn register_memory;
  RegisterDmaBufFn register_dma_buf;
  DeregisterFn deregister_memory;
  SendPlainFn<std::size_t> isend;
  ReceivePlainFn<std::size_t> irecv;
  FlushFn iflush;
  TestFn test;
  CloseFn close_send;
  CloseFn close_receive;
  CloseFn close_listen;
  GetDeviceMrFn get_device_mr;
  ConsumedFn receive_consumed;
  Result (*make_virtual_device)(int* device, VirtualDevice<4>*);
};
static_assert(sizeof(NetV9) == 160);

struct NetV10 {
  const char* name;
  Result (*init)(Logger, ProfilerCallback);
  DevicesFn devices;
  Result (*get_properties)(int device, PropertiesV10*);
  ListenPlainFn listen;
  Result (*connect)(int device, CommConfig*, void* handle, void** send_comm, DeviceHandle** device_comm);
  AcceptFn accept;
  RegisterFn register_memory;
  RegisterDmaBufFn register_dma_buf;
  DeregisterFn deregister_memory;
  SendFn isend;
  ReceiveFn irecv;
  FlushFn iflush;
  TestFn test;
  CloseFn close_send;
  CloseFn close_receive;
  CloseFn close_listen;
  GetDeviceMrFn get_device_mr;
  ConsumedFn receive_consumed;
  Result (*make_virtual_device)(int* device, VirtualDevice<4>*);
};
static_assert(sizeof(NetV10) == 160);

// v11 and v12 differ in their properties only.
template <typename Properties, int Devices>
struct NetWithContext {
  const char* name;
  Result (*init)(void** context, std::uint64_t comm, CommConfig*, Logger, ProfilerCallback);
  DevicesFn devices;
  Result (*get_properties)(int device, Properties*);
  Result (*listen)(void* context, int device, void* handle, void** listen_comm);
  Result (*connect)(void* context, int device, void* handle, void** send_comm, DeviceHandle** device_comm);
  AcceptFn accept;
  RegisterFn register_memory;
  RegisterDmaBufFn register_dma_buf;
  DeregisterFn deregister_memory;
  SendFn isend;
  ReceiveFn irecv;
  FlushFn iflush;
  TestFn test;
  CloseFn close_send;
  CloseFn close_receive;
  CloseFn close_listen;
  GetDeviceMrFn get_device_mr;
  ConsumedFn receive_consumed;
  Result (*make_virtual_device)(int* device, VirtualDevice<Devices>*);
  Result (*finalize)(void* context);
  Result (*set_attributes)(void* context, NetAttributes*);
};
using NetV11 = NetWithContext<PropertiesV11, 4>;
using NetV12 = NetWithContext<PropertiesV12, 8>;
static_assert(sizeof(NetV11) == 176 && sizeof(NetV12) == 176);

// One pointer per member, in the order of the table of NCCL's interface.
template <typename Net>
constexpr bool in_order() {
  constexpr std::size_t p = sizeof(void*);
  return offsetof(Net, init) == 1 * p && offsetof(Net, devices) == 2 * p && offsetof(Net, get_properties) == 3 * p &&
         offsetof(Net, listen) == 4 * p && offsetof(Net, connect) == 5 * p && offsetof(Net, accept) == 6 * p &&
         offsetof(Net, register_memory) == 7 * p && offsetof(Net, register_dma_buf) == 8 * p &&
         offsetof(Net, deregister_memory) == 9 * p && offsetof(Net, isend) == 10 * p &&
         offsetof(Net, irecv) == 11 * p && offsetof(Net, iflush) == 12 * p && offsetof(Net, test) == 13 * p &&
         offsetof(Net, close_send) == 14 * p && offsetof(Net, close_receive) == 15 * p &&
         offsetof(Net, close_listen) == 16 * p && offsetof(Net, get_device_mr) == 17 * p &&
         offsetof(Net, receive_consumed) == 18 * p;
}
static_assert(in_order<NetV8>() && in_order<NetV9>() && in_order<NetV10>() && in_order<NetV11>() && in_order<NetV12>());
static_assert(offsetof(NetV11, make_virtual_device) == 152 && offsetof(NetV11, finalize) == 160);
static_assert(offsetof(NetV12, set_attributes) == 168 && offsetof(NetV11, set_attributes) == 168);

}  // namespace canarynet::nccl::abi
