#include "tests/nccl/net.h"

#include <dlfcn.h>

#include <algorithm>
#include <mutex>

namespace nccltest {
namespace {

// NCCL hands this over while no profiler is loaded.
Result no_profiler(void**, int, void*, std::int64_t, void*) { return kSuccess; }

// `Table` is the object of version V, `TableProperties` what its get_properties() fills.
template <int V, typename Table, typename TableProperties>
class Adapter final : public Net {
 public:
  explicit Adapter(const Table* table) : table_(*table) {}

  int version() const override { return V; }
  std::string name() const override { return table_.name ? table_.name : ""; }

  Result init(void** ctx, std::uint64_t comm_id, Logger log) override {
    if constexpr (V >= 11) {
      CommConfig config{kUndefined};
      return table_.init(ctx, comm_id, &config, log, no_profiler);
    } else {
      (void)comm_id;
      *ctx = nullptr;
      const std::lock_guard lock(mutex_);
      if (users_++ > 0) return kSuccess;
      if constexpr (V == 10) return table_.init(log, no_profiler);
      if constexpr (V < 10) return table_.init(log);
    }
  }
  Result finalize(void* ctx) override {
    if constexpr (V >= 11) {
      return table_.finalize(ctx);
    } else {
      (void)ctx;
      const std::lock_guard lock(mutex_);
      --users_;
      return kSuccess;
    }
  }
  Result devices(int* count) override { return table_.devices(count); }
  Result properties(int dev, Properties* out) override {
    TableProperties p;
    // NCCL hands over uninitialised memory: a member that the plugin leaves out shows as nonsense, not as a lucky zero.
    std::fill_n(reinterpret_cast<unsigned char*>(&p), sizeof p, static_cast<unsigned char>(0xA5));
    const Result result = table_.get_properties(dev, &p);
    if (result != kSuccess) return result;
    *out = Properties{};
    out->has_name = p.name != nullptr;
    out->name = p.name ? p.name : "";
    out->pci_path = p.pci_path ? p.pci_path : "";
    out->guid = p.guid;
    out->ptr_support = p.ptr_support;
    out->speed_mbit = p.speed;
    out->port = p.port;
    out->latency_us = p.latency;
    out->max_comms = p.max_comms;
    out->max_recvs = p.max_recvs;
    out->net_device_type = p.net_device_type;
    out->net_device_version = p.net_device_version;
    if constexpr (V >= 9) {
      out->force_flush = p.force_flush;
      out->vdevices = p.vprops.ndevs;
      out->max_p2p_bytes = p.max_p2p_bytes;
      out->max_coll_bytes = p.max_coll_bytes;
    }
    return kSuccess;
  }
  Result set_net_attr(void* ctx) override {
    if constexpr (V >= 11) {
      if (!table_.set_net_attr) return kSuccess;
      NetAttr attributes{{1, 1, 1, 1}, {1, 1, 1, 1}, ~0u, ~0u, ~0u};
      return table_.set_net_attr(ctx, &attributes);
    } else {
      (void)ctx;
      return kSuccess;
    }
  }

  Result listen(void* ctx, int dev, void* handle, void** comm) override {
    if constexpr (V >= 11) {
      return table_.listen(ctx, dev, handle, comm);
    } else {
      (void)ctx;
      return table_.listen(dev, handle, comm);
    }
  }
  Result connect(void* ctx, int dev, void* handle, void** comm) override {
    DeviceHandle* device = nullptr;
    if constexpr (V >= 11) {
      return table_.connect(ctx, dev, handle, comm, &device);
    } else if constexpr (V == 10) {
      (void)ctx;
      CommConfig config{kUndefined};
      return table_.connect(dev, &config, handle, comm, &device);
    } else {
      (void)ctx;
      return table_.connect(dev, handle, comm, &device);
    }
  }
  Result accept(void* listen_comm, void** comm) override {
    DeviceHandle* device = nullptr;
    return table_.accept(listen_comm, comm, &device);
  }
  Result reg_mr(void* comm, void* data, std::size_t size, int type, void** mhandle) override {
    return table_.reg_mr(comm, data, size, type, mhandle);
  }
  Result dereg_mr(void* comm, void* mhandle) override { return table_.dereg_mr(comm, mhandle); }

  Result isend(void* comm, void* data, std::size_t size, int tag, void* mhandle, void** request) override {
    if constexpr (V >= 10) {
      return table_.isend(comm, data, size, tag, mhandle, nullptr, request);
    } else if constexpr (V == 9) {
      return table_.isend(comm, data, size, tag, mhandle, request);
    } else {
      return table_.isend(comm, data, static_cast<int>(size), tag, mhandle, request);
    }
  }
  Result irecv(void* comm, int n, void** data, const std::size_t* sizes, int* tags, void** mhandles,
               void** request) override {
    if constexpr (V >= 9) {
      std::size_t bounds[kMaxGroup];
      std::copy_n(sizes, n, bounds);
      if constexpr (V >= 10) {
        void* phandles[kMaxGroup] = {};
        return table_.irecv(comm, n, data, bounds, tags, mhandles, phandles, request);
      } else {
        return table_.irecv(comm, n, data, bounds, tags, mhandles, request);
      }
    } else {
      int bounds[kMaxGroup];
      std::transform(sizes, sizes + n, bounds, [](std::size_t s) { return static_cast<int>(s); });
      if (*request == reinterpret_cast<void*>(kOptionalRecvCompletion)) *request = nullptr;
      return table_.irecv(comm, n, data, bounds, tags, mhandles, request);
    }
  }
  Result iflush(void* comm, int n, void** data, int* sizes, void** mhandles, void** request) override {
    return table_.iflush(comm, n, data, sizes, mhandles, request);
  }
  Result test(void* request, int* done, int* sizes) override { return table_.test(request, done, sizes); }
  Result close_send(void* comm) override { return table_.close_send(comm); }
  Result close_recv(void* comm) override { return table_.close_recv(comm); }
  Result close_listen(void* comm) override { return table_.close_listen(comm); }

  std::string missing_member() const override {
    const std::pair<bool, const char*> members[] = {{table_.name, "name"},
                                                    {table_.init, "init"},
                                                    {table_.devices, "devices"},
                                                    {table_.get_properties, "getProperties"},
                                                    {table_.listen, "listen"},
                                                    {table_.connect, "connect"},
                                                    {table_.accept, "accept"},
                                                    {table_.reg_mr, "regMr"},
                                                    {table_.dereg_mr, "deregMr"},
                                                    {table_.isend, "isend"},
                                                    {table_.irecv, "irecv"},
                                                    {table_.iflush, "iflush"},
                                                    {table_.test, "test"},
                                                    {table_.close_send, "closeSend"},
                                                    {table_.close_recv, "closeRecv"},
                                                    {table_.close_listen, "closeListen"}};
    for (const auto& [present, member] : members) {
      if (!present) return member;
    }
    if constexpr (V >= 11) {
      if (!table_.finalize) return "finalize";
    }
    return "";
  }

 private:
  Table table_;
  std::mutex mutex_;
  int users_ = 0;
};

template <int V, typename Table, typename TableProperties>
std::unique_ptr<Net> adapter(void* symbol) {
  return std::make_unique<Adapter<V, Table, TableProperties>>(static_cast<const Table*>(symbol));
}

}  // namespace

std::unique_ptr<PluginFile> PluginFile::open(const std::string& path, std::string* error) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    *error = dlerror();
    return nullptr;
  }
  return std::unique_ptr<PluginFile>(new PluginFile(library));
}

PluginFile::~PluginFile() { dlclose(library_); }

void* PluginFile::symbol(const std::string& name) const { return dlsym(library_, name.c_str()); }

std::vector<int> PluginFile::versions() const {
  std::vector<int> found;
  for (int v = 12; v >= 8; --v) {
    if (symbol("ncclNetPlugin_v" + std::to_string(v))) found.push_back(v);
  }
  return found;
}

std::unique_ptr<Net> PluginFile::net(int version, std::string* error) const {
  const std::vector<int> found = versions();
  if (version == 0 && !found.empty()) version = found.front();
  void* table = symbol("ncclNetPlugin_v" + std::to_string(version));
  if (table) {
    switch (version) {
      case 8:
        return adapter<8, NetV8, PropertiesV8>(table);
      case 9:
        return adapter<9, NetV9, PropertiesV9>(table);
      case 10:
        return adapter<10, NetV10, PropertiesV9>(table);
      case 11:
        return adapter<11, NetV11, PropertiesV11>(table);
      case 12:
        return adapter<12, NetV12, PropertiesV12>(table);
      default:
        break;
    }
  }
  *error = "exports no ncclNetPlugin_v" + std::to_string(version) + " (of v8 to v12 it has:";
  for (int v : found) *error += " v" + std::to_string(v);
  *error += found.empty() ? " none)" : ")";
  return nullptr;
}

}  // namespace nccltest
