// The exported tables, v8 to v12, over one state per process.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

#include "tests/nccl/baseline_plugin/transport.h"

namespace nccltest::baseline {
namespace {

struct State {
  std::mutex mutex;
  int users = 0;
  std::vector<Nic> nics;
  Config config;
  // The sender's state between two calls of connect. Its key is the handle's buffer, which NCCL keeps: a pointer inside
  // the handle, as the built-in has it, would be whatever a broken peer sent.
  std::map<void*, std::unique_ptr<Connecting>> connecting;
  std::vector<Listener*> listeners;
};
State& state() {
  static State one;
  return one;
}

Result init(Logger log) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  set_logger(log);
  if (s.users++ > 0) return kSuccess;
  s.nics = find_nics();
  s.config = read_config(s.nics.size());
  if (s.nics.empty()) {
    BASELINE_WARN("NET/Baseline: no interface is up");
    return kSystemError;
  }
  return kSuccess;
}
Result init_context(void** context, std::uint64_t, CommConfig*, Logger log, ProfilerCallback) {
  *context = nullptr;
  return init(log);
}
Result init_profiled(Logger log, ProfilerCallback) { return init(log); }

Result finalize(void*) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (--s.users > 0) return kSuccess;
  s.connecting.clear();
  for (Listener* listener : s.listeners) delete listener;
  s.listeners.clear();
  return kSuccess;
}

Result devices(int* count) {
  *count = state().config.all_nics ? 1 : static_cast<int>(state().nics.size());
  return kSuccess;
}

template <typename Properties>
Result properties(int dev, Properties* p) {
  State& s = state();
  if (dev < 0 || dev >= static_cast<int>(s.nics.size())) return kInvalidArgument;
  Nic& nic = s.nics[static_cast<std::size_t>(dev)];
  std::memset(static_cast<void*>(p), 0, sizeof *p);
  p->name = nic.name.data();
  p->guid = static_cast<std::uint64_t>(dev);
  p->ptr_support = kPtrHost;
  p->speed = nic.speed_mbit;
  if (s.config.all_nics) {
    p->speed = 0;
    for (const Nic& each : s.nics) p->speed += each.speed_mbit;
  }
  p->max_comms = 65536;
  p->max_recvs = 1;
  if constexpr (requires { p->vprops; }) {
    p->vprops.ndevs = 1;
    p->vprops.devs[0] = dev;
    p->max_p2p_bytes = kMaxNetBytes;
    p->max_coll_bytes = std::size_t{1} << 29;
  }
  if constexpr (requires { p->max_multi_request_size; }) p->max_multi_request_size = 1;
  if constexpr (requires { p->rail_id; }) p->rail_id = p->plane_id = kUndefined;
  return kSuccess;
}

Result listen(int dev, void* handle, void** comm) {
  State& s = state();
  Result result = kSuccess;
  auto listener = listen_on(s.nics, dev, s.config, &result);
  if (!listener) return result;
  std::memcpy(handle, &listener->handle, sizeof(Handle));
  const std::lock_guard lock(s.mutex);
  s.listeners.push_back(listener.get());
  *comm = listener.release();
  return kSuccess;
}
Result listen_context(void*, int dev, void* handle, void** comm) { return listen(dev, handle, comm); }

Result connect(int, void* buffer, void** comm, DeviceHandle**) {
  State& s = state();
  *comm = nullptr;
  Handle handle;
  std::memcpy(&handle, buffer, sizeof handle);
  const std::lock_guard lock(s.mutex);
  auto& connecting = s.connecting[buffer];
  Result result = kSuccess;
  if (!connecting || std::memcmp(&connecting->handle, &handle, sizeof handle) != 0) {
    connecting = begin_connect(handle, s.config, &result);
  }
  std::unique_ptr<Comm> made;
  if (connecting) made = go_on_connecting(*connecting, s.config, &result);
  if (made || result != kSuccess) s.connecting.erase(buffer);
  *comm = made.release();
  return result;
}
Result connect_config(int dev, CommConfig*, void* handle, void** comm, DeviceHandle** device) {
  return connect(dev, handle, comm, device);
}
Result connect_context(void*, int dev, void* handle, void** comm, DeviceHandle** device) {
  return connect(dev, handle, comm, device);
}

Result accept(void* listen_comm, void** comm, DeviceHandle**) {
  Result result = kSuccess;
  *comm = accept_from(*static_cast<Listener*>(listen_comm), &result).release();
  return result;
}

Result reg_mr(void*, void*, std::size_t, int type, void** mhandle) {
  *mhandle = nullptr;
  return type == kPtrHost ? kSuccess : kInternalError;
}
Result dereg_mr(void*, void*) { return kSuccess; }

Result isend(void* comm, void* data, std::size_t size, int, void*, void** request) {
  *request = static_cast<Comm*>(comm)->take(data, size);
  return kSuccess;
}
Result isend_v8(void* comm, void* data, int size, int tag, void* mhandle, void** request) {
  return isend(comm, data, static_cast<std::size_t>(size), tag, mhandle, request);
}
Result isend_v10(void* comm, void* data, std::size_t size, int tag, void* mhandle, void*, void** request) {
  return isend(comm, data, size, tag, mhandle, request);
}
template <typename Size>
Result irecv(void* comm, int n, void** data, Size* sizes, int*, void**, void** request) {
  if (n != 1) return kInternalError;
  *request = static_cast<Comm*>(comm)->take(data[0], static_cast<std::size_t>(sizes[0]));
  return kSuccess;
}
Result irecv_v10(void* comm, int n, void** data, std::size_t* sizes, int* tags, void** mhandles, void**,
                 void** request) {
  return irecv(comm, n, data, sizes, tags, mhandles, request);
}
Result iflush(void*, int, void**, int*, void**, void** request) {
  *request = nullptr;
  return kInternalError;
}
Result test(void* handle, int* done, int* sizes) {
  Request& request = *static_cast<Request*>(handle);
  return request.comm->test(request, done, sizes);
}

Result close_comm(void* comm) {
  delete static_cast<Comm*>(comm);
  return kSuccess;
}
Result close_listen(void* comm) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto found = std::find(s.listeners.begin(), s.listeners.end(), static_cast<Listener*>(comm));
  if (found != s.listeners.end()) s.listeners.erase(found);
  delete static_cast<Listener*>(comm);
  return kSuccess;
}

}  // namespace
}  // namespace nccltest::baseline

// The trailing members, which differ between versions only in their number.
#define BASELINE_COMMON \
  test, close_comm, close_comm, close_listen, nullptr /* getDeviceMr */, nullptr /* irecvConsumed */

extern "C" {
using namespace nccltest;
using namespace nccltest::baseline;
#define BASELINE_EXPORT __attribute__((visibility("default")))
BASELINE_EXPORT NetV8 ncclNetPlugin_v8 = {
    "Baseline", init,       devices, properties<PropertiesV8>, listen, connect, accept, reg_mr, nullptr, dereg_mr,
    isend_v8,   irecv<int>, iflush,  BASELINE_COMMON};
BASELINE_EXPORT NetV9 ncclNetPlugin_v9 = {
    "Baseline", init,     devices, properties<PropertiesV9>, listen, connect,         accept, reg_mr,
    nullptr,    dereg_mr, isend,   irecv<std::size_t>,       iflush, BASELINE_COMMON, nullptr};
BASELINE_EXPORT NetV10 ncclNetPlugin_v10 = {"Baseline", init_profiled,   devices,   properties<PropertiesV9>,
                                            listen,     connect_config,  accept,    reg_mr,
                                            nullptr,    dereg_mr,        isend_v10, irecv_v10,
                                            iflush,     BASELINE_COMMON, nullptr};
BASELINE_EXPORT NetV11 ncclNetPlugin_v11 = {"Baseline",     init_context,    devices,   properties<PropertiesV11>,
                                            listen_context, connect_context, accept,    reg_mr,
                                            nullptr,        dereg_mr,        isend_v10, irecv_v10,
                                            iflush,         BASELINE_COMMON, nullptr,   finalize,
                                            nullptr};
BASELINE_EXPORT NetV12 ncclNetPlugin_v12 = {"Baseline",     init_context,    devices,   properties<PropertiesV12>,
                                            listen_context, connect_context, accept,    reg_mr,
                                            nullptr,        dereg_mr,        isend_v10, irecv_v10,
                                            iflush,         BASELINE_COMMON, nullptr,   finalize,
                                            nullptr};
}
