// libnccl-net-faulty.so: the plugin FAULTY_INNER (v12) with the mistake that FAULTY names, to show that the harness
// finds it.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>

#include "tests/nccl/abi/net.h"

namespace nccltest::faulty {
namespace {

NetV12 inner;

bool fault(const char* name) {
  const char* chosen = std::getenv("FAULTY");
  return chosen && std::strcmp(chosen, name) == 0;
}

struct Receive {
  unsigned char* data;
  int count = 0;
};
std::mutex g_mutex;
std::map<void*, Receive> g_receives;  // by request
unsigned char* g_closed = nullptr;    // a buffer that must not be written any more
int g_number = 0;
std::atomic<int> g_slow{0};
Logger g_log = nullptr;
int g_no_listener;

// Sleeps in the first `times` calls, if that is the chosen fault.
void slow(const char* name, int milliseconds, int times) {
  if (fault(name) && g_slow++ < times) usleep(static_cast<useconds_t>(milliseconds) * 1000);
}

Result init(void** ctx, std::uint64_t comm, CommConfig* config, Logger log, ProfilerCallback profiler) {
  g_log = log;
  return inner.init(ctx, comm, config, log, profiler);
}

Result get_properties(int dev, PropertiesV12* p) {
  const Result result = inner.get_properties(dev, p);
  if (fault("latency")) p->latency = std::numeric_limits<float>::quiet_NaN();
  return result;
}

Result listen(void* ctx, int dev, void* handle, void** comm) {
  const Result result = inner.listen(ctx, dev, handle, comm);
  if (fault("long_handle")) static_cast<unsigned char*>(handle)[kHandleBytes] = 0;
  if (result == kSuccess && fault("unheard")) {
    inner.close_listen(*comm);
    *comm = &g_no_listener;
  }
  return result;
}

Result accept(void* listen_comm, void** comm, DeviceHandle** device) {
  *comm = nullptr;
  return listen_comm == &g_no_listener ? kSuccess : inner.accept(listen_comm, comm, device);
}

Result close_listen(void* listen_comm) {
  slow("slow_close_listen", 3000, 1);
  return listen_comm == &g_no_listener ? kSuccess : inner.close_listen(listen_comm);
}

Result reg_mr(void* comm, void* data, std::size_t size, int type, void** mhandle) {
  slow("slow_register", 3000, 1);
  return inner.reg_mr(comm, data, size, type, mhandle);
}

Result dereg_mr(void* comm, void* mhandle) {
  slow("slow_deregister", 3000, 1);
  return inner.dereg_mr(comm, mhandle);
}

Result close_recv(void* comm) {
  slow("slow_close", 4000, 1);
  return inner.close_recv(comm);
}

Result connect(void* ctx, int dev, void* handle, void** comm, DeviceHandle** device) {
  if (fault("blocks")) sleep(3);
  if (fault("descriptors")) (void)!open("/dev/null", O_RDONLY | O_CLOEXEC);
  return inner.connect(ctx, dev, handle, comm, device);
}

Result isend(void* comm, void* data, std::size_t size, int tag, void* mhandle, void* phandle, void** request) {
  slow("slow_isend", 800, 2);
  void* own = nullptr;
  const Result result = inner.isend(comm, data, size, tag, mhandle, phandle, &own);
  if (!fault("untouched")) *request = own;
  return result;
}

Result irecv(void* comm, int n, void** data, std::size_t* sizes, int* tags, void** mhandles, void** phandles,
             void** request) {
  slow("slow_irecv", 800, 2);
  void* own = nullptr;
  const Result result = inner.irecv(comm, n, data, sizes, tags, mhandles, phandles, &own);
  const bool hinted = *request == reinterpret_cast<void*>(kOptionalRecvCompletion);
  if (own) {
    const std::lock_guard lock(g_mutex);
    g_receives[own] = {static_cast<unsigned char*>(data[0]), ++g_number};
    g_closed = static_cast<unsigned char*>(data[0]);
  }
  if (!(hinted && fault("hint"))) *request = own;
  return result;
}

Result test(void* request, int* done, int* sizes) {
  slow("slow_test", 800, 2);
  slow("slow_test_once", 800, 1);
  int own_done = 0;
  const Result result = inner.test(request, &own_done, sizes);
  if (result != kSuccess) {
    if (fault("scattered")) g_log(kLogWarn, kLogNet, __FILE__, __LINE__, "%d bytes outstanding", 1);
    return result;
  }
  if (own_done || !fault("done")) *done = own_done;
  const std::lock_guard lock(g_mutex);
  const auto found = g_receives.find(request);
  if (found == g_receives.end()) return kSuccess;
  if (fault("early") && !own_done && found->second.count % 8 == 0) *done = 1;
  if (!own_done) return kSuccess;
  const Receive receive = found->second;
  g_receives.erase(found);
  const int size = sizes[0];
  if (receive.count % 20 != 0) return kSuccess;
  if (fault("corrupt") && size > 0) receive.data[size / 2] ^= 1;
  if (fault("behind")) receive.data[size] ^= 1;
  if (fault("size")) sizes[0] = size + 1;
  if (fault("sizes")) sizes[1] = 1;
  return kSuccess;
}

Result finalize(void* ctx) {
  if (fault("closed") && g_closed) g_closed[100] ^= 1;
  if (fault("finalize")) sleep(4);
  return inner.finalize(ctx);
}

// Runs before anybody asks for a symbol.
__attribute__((constructor)) void load();

}  // namespace
}  // namespace nccltest::faulty

extern "C" __attribute__((visibility("default"))) nccltest::NetV12 ncclNetPlugin_v12;
nccltest::NetV12 ncclNetPlugin_v12;

namespace nccltest::faulty {
namespace {
void load() {
  const char* path = std::getenv("FAULTY_INNER");
  void* library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  const void* symbol = library ? dlsym(library, "ncclNetPlugin_v12") : nullptr;
  if (!symbol) return;  // an empty table: the harness says so
  inner = *static_cast<const NetV12*>(symbol);
  ncclNetPlugin_v12 = inner;
  ncclNetPlugin_v12.init = init;
  ncclNetPlugin_v12.get_properties = get_properties;
  ncclNetPlugin_v12.listen = listen;
  ncclNetPlugin_v12.connect = connect;
  ncclNetPlugin_v12.accept = accept;
  ncclNetPlugin_v12.reg_mr = reg_mr;
  ncclNetPlugin_v12.dereg_mr = dereg_mr;
  ncclNetPlugin_v12.close_recv = close_recv;
  ncclNetPlugin_v12.close_listen = close_listen;
  ncclNetPlugin_v12.isend = isend;
  ncclNetPlugin_v12.irecv = irecv;
  ncclNetPlugin_v12.test = test;
  ncclNetPlugin_v12.finalize = finalize;
}
}  // namespace
}  // namespace nccltest::faulty
