// The objects that NCCL looks for: ncclNetPlugin_v8 to _v12, over plugins/nccl/net.h. All differences between versions
// are here and nowhere else.
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "plugins/nccl/abi/net.h"
#include "plugins/nccl/net.h"
#include "plugins/nccl/report.h"

namespace canarynet::nccl {
namespace {

using namespace abi;

constexpr int kCommsMax = 65536;
constexpr std::uint64_t kGuid = 0xCA9A7;  // one device: nothing shares its bandwidth

// --- properties ------------------------------------------------------------------------------------------------------

template <typename Properties>
Result get_properties(int device, Properties* p) {
  std::memset(p, 0, sizeof *p);
  int speed = 0;
  if (const Result r = net_speed_mbit(device, &speed); r != Result::kSuccess) return r;
  p->name = kName;
  p->pci_path = nullptr;  // attached to the CPU: keeps LL128 off, which wants 128-byte lines to become visible whole
  p->guid = kGuid;
  p->pointer_support = kPointerHost;
  p->speed_mbit = speed;
  p->comms_max = kCommsMax;
  p->receives_max = 1;  // more would make NCCL share comms between channels
  p->device_type = DeviceType::kHost;
  if constexpr (requires { p->virtual_device; }) {
    p->virtual_device.count = 1;
    p->virtual_device.devices[0] = device;
    p->message_bytes_max = kMessageBytesMax;
    p->collnet_bytes_max = kCollNetBytesMax;
  }
  if constexpr (requires { p->multi_request_max; }) p->multi_request_max = 1;
  if constexpr (requires { p->rail; }) p->rail = p->plane = kIdUndefined;
  return Result::kSuccess;
}

// --- life and connections --------------------------------------------------------------------------------------------

Result init_plain(Logger logger) { return net_init(nullptr, logger); }
// NCCL 2.20, and 2.21, the first to ask a tuner, know no newer version than this one.
Result init_v8(Logger logger) {
  const Result r = net_init(nullptr, logger);
  if (r == Result::kSuccess && std::getenv("CANARY_NCCL_ALPHA") != nullptr) {
    info(here(), kLogInit | kLogTuning,
         "CANARY_NCCL_ALPHA and CANARY_NCCL_BANDWIDTH have no effect before NCCL 2.21, which can't take this tuner");
  }
  return r;
}
Result init_profiled(Logger logger, ProfilerCallback) { return net_init(nullptr, logger); }
Result init(void** context, std::uint64_t, CommConfig*, Logger logger, ProfilerCallback) {
  return net_init(context, logger);
}

Result listen_plain(int device, void* handle, void** comm) { return net_listen(nullptr, device, handle, comm); }
Result listen(void* context, int device, void* handle, void** comm) {
  return net_listen(context, device, handle, comm);
}

// There is no device offload: NCCL's device handle stays as it was.
Result connect_plain(int device, void* handle, void** comm, DeviceHandle**) {
  return net_connect(nullptr, device, handle, comm);
}
Result connect_configured(int device, CommConfig*, void* handle, void** comm, DeviceHandle**) {
  return net_connect(nullptr, device, handle, comm);
}
Result connect(void* context, int device, void* handle, void** comm, DeviceHandle**) {
  return net_connect(context, device, handle, comm);
}
Result accept(void* listen_comm, void** comm, DeviceHandle**) { return net_accept(listen_comm, comm); }

// --- messages --------------------------------------------------------------------------------------------------------

template <typename Size>
Result isend_plain(void* comm, void* data, Size bytes, int tag, void* registration, void** request) {
  if constexpr (std::is_signed_v<Size>) {
    if (bytes < 0) {
      *request = nullptr;
      return net_end(comm, fail(here(), Result::kInternalError, "isend: %d bytes", static_cast<int>(bytes)),
                     "a send of a negative length was posted");
    }
  }
  return net_isend(comm, data, static_cast<std::size_t>(bytes), tag, registration, request);
}
Result isend(void* comm, void* data, std::size_t bytes, int tag, void* registration, void*, void** request) {
  return net_isend(comm, data, bytes, tag, registration, request);
}

template <typename Size>
Result irecv_plain(void* comm, int count, void** data, Size* bytes, int* tags, void** registrations, void** request) {
  if constexpr (std::is_same_v<Size, std::size_t>) {
    return net_irecv(comm, count, data, bytes, tags, registrations, request);
  } else {
    std::size_t room[kReceivesMax] = {};
    for (int i = 0; i < count && i < kReceivesMax; ++i) {
      if (bytes[i] < 0) {
        *request = nullptr;
        return net_end(comm,
                       fail(here(), Result::kInternalError, "irecv: room for %d bytes", static_cast<int>(bytes[i])),
                       "a receive with room for a negative length was posted");
      }
      room[i] = static_cast<std::size_t>(bytes[i]);
    }
    return net_irecv(comm, count, data, room, tags, registrations, request);
  }
}
Result irecv(void* comm, int count, void** data, std::size_t* bytes, int* tags, void** registrations, void**,
             void** request) {
  return net_irecv(comm, count, data, bytes, tags, registrations, request);
}
Result iflush(void*, int, void**, int*, void**, void** request) { return net_iflush(request); }

// --- the objects -----------------------------------------------------------------------------------------------------

// The members that all versions have in common.
template <typename Net, typename Properties>
constexpr Net make() {
  Net n{};
  n.name = kName;
  n.devices = net_devices;
  n.get_properties = get_properties<Properties>;
  n.accept = accept;
  n.register_memory = net_register;
  n.deregister_memory = net_deregister;
  n.iflush = iflush;
  n.test = net_test;
  n.close_send = n.close_receive = net_close;
  n.close_listen = net_close_listen;
  return n;
}

template <typename Net, typename Properties, typename Size>
constexpr Net make_plain() {
  Net n = make<Net, Properties>();
  n.init = init_plain;
  n.listen = listen_plain;
  n.connect = connect_plain;
  n.isend = isend_plain<Size>;
  n.irecv = irecv_plain<Size>;
  return n;
}

constexpr NetV8 make_v8() {
  NetV8 n = make_plain<NetV8, PropertiesV8, int>();
  n.init = init_v8;
  return n;
}

constexpr NetV10 make_v10() {
  NetV10 n = make<NetV10, PropertiesV10>();
  n.init = init_profiled;
  n.listen = listen_plain;
  n.connect = connect_configured;
  n.isend = isend;
  n.irecv = irecv;
  return n;
}

template <typename Net, typename Properties>
constexpr Net make_with_context() {
  Net n = make<Net, Properties>();
  n.init = init;
  n.listen = listen;
  n.connect = connect;
  n.isend = isend;
  n.irecv = irecv;
  n.finalize = net_finalize;
  return n;
}

}  // namespace
}  // namespace canarynet::nccl

// They are declared before they are defined: otherwise a namespace's const object would be invisible to dlsym.
#define CANARY_NCCL_EXPORT extern "C" __attribute__((visibility("default")))
namespace nccl = canarynet::nccl;
CANARY_NCCL_EXPORT const nccl::abi::NetV8 ncclNetPlugin_v8;
CANARY_NCCL_EXPORT const nccl::abi::NetV9 ncclNetPlugin_v9;
CANARY_NCCL_EXPORT const nccl::abi::NetV10 ncclNetPlugin_v10;
CANARY_NCCL_EXPORT const nccl::abi::NetV11 ncclNetPlugin_v11;
CANARY_NCCL_EXPORT const nccl::abi::NetV12 ncclNetPlugin_v12;

const nccl::abi::NetV8 ncclNetPlugin_v8 = nccl::make_v8();
const nccl::abi::NetV9 ncclNetPlugin_v9 = nccl::make_plain<nccl::abi::NetV9, nccl::abi::PropertiesV9, std::size_t>();
const nccl::abi::NetV10 ncclNetPlugin_v10 = nccl::make_v10();
const nccl::abi::NetV11 ncclNetPlugin_v11 = nccl::make_with_context<nccl::abi::NetV11, nccl::abi::PropertiesV11>();
const nccl::abi::NetV12 ncclNetPlugin_v12 = nccl::make_with_context<nccl::abi::NetV12, nccl::abi::PropertiesV12>();
