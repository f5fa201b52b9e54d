// tests/nccl/net.h -- a net plugin file, loaded as NCCL loads it, behind one interface for all versions.
//
// Each version has an adapter that does what NCCL's shim for that version does (v8 to v10: init once per process, the
// config goes to v10's connect; v8: sizes are int, the completion hint is taken away). Calls may come from several
// threads, as the plugin's contract says; the interface itself locks only around init and finalize.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/nccl/abi/net.h"

namespace nccltest {

// The union of all versions; members that a version lacks have the values that NCCL assumes in their place.
struct Properties {
  std::string name;
  bool has_name = false;
  std::string pci_path;
  std::uint64_t guid = 0;
  int ptr_support = 0;
  int force_flush = 0;
  int speed_mbit = 0;
  int port = 0;
  float latency_us = 0;
  int max_comms = 0;
  int max_recvs = 0;
  int net_device_type = 0;
  int net_device_version = 0;
  int vdevices = 1;
  std::size_t max_p2p_bytes = std::size_t{1} << 30;
  std::size_t max_coll_bytes = std::size_t{1} << 29;
};

class Net {
 public:
  virtual ~Net() = default;
  virtual int version() const = 0;
  virtual std::string name() const = 0;

  virtual Result init(void** ctx, std::uint64_t comm_id, Logger log) = 0;
  virtual Result finalize(void* ctx) = 0;  // v8 to v10 have none
  virtual Result devices(int* count) = 0;
  virtual Result properties(int dev, Properties* out) = 0;
  virtual Result set_net_attr(void* ctx) = 0;

  // `handle` has kHandleBytes; connect gets the same buffer until it has returned a comm.
  virtual Result listen(void* ctx, int dev, void* handle, void** listen_comm) = 0;
  virtual Result connect(void* ctx, int dev, void* handle, void** send_comm) = 0;
  virtual Result accept(void* listen_comm, void** recv_comm) = 0;
  virtual Result reg_mr(void* comm, void* data, std::size_t size, int type, void** mhandle) = 0;
  virtual Result dereg_mr(void* comm, void* mhandle) = 0;

  virtual Result isend(void* comm, void* data, std::size_t size, int tag, void* mhandle, void** request) = 0;
  // `sizes` are bounds; the plugin gets a copy. n <= kMaxGroup.
  virtual Result irecv(void* comm, int n, void** data, const std::size_t* sizes, int* tags, void** mhandles,
                       void** request) = 0;
  virtual Result iflush(void* comm, int n, void** data, int* sizes, void** mhandles, void** request) = 0;
  virtual Result test(void* request, int* done, int* sizes) = 0;

  virtual Result close_send(void* comm) = 0;
  virtual Result close_recv(void* comm) = 0;
  virtual Result close_listen(void* comm) = 0;

  // Returns the name of the first member that is NULL but must not be, or "".
  virtual std::string missing_member() const = 0;

  static constexpr int kMaxGroup = 8;
};

// A plugin file in the process; unloaded with the object (as far as its link flags let it).
class PluginFile {
 public:
  // Uses dlopen with RTLD_NOW | RTLD_LOCAL. Returns NULL with `error` if that fails.
  static std::unique_ptr<PluginFile> open(const std::string& path, std::string* error);
  ~PluginFile();
  PluginFile(const PluginFile&) = delete;
  PluginFile& operator=(const PluginFile&) = delete;

  void* symbol(const std::string& name) const;  // NULL: not exported
  std::vector<int> versions() const;            // of the net plugins exported, newest first
  // Version 0 is the newest. Returns NULL with `error` if the version is not exported.
  std::unique_ptr<Net> net(int version, std::string* error) const;

 private:
  explicit PluginFile(void* library) : library_(library) {}
  void* library_;
};

}  // namespace nccltest
