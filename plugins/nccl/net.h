// plugins/nccl/net.h -- one aggregated network device over the library's connections, without regard to the version of
// NCCL's interface.
//
// What: plugins/nccl/net_versions.cc wraps these for each version. No call waits for a peer, but for the end of the
// process's last user (finalize, or a last close): up to 0.5 s, until peers have heard. The endpoint's own thread does
// the I/O, and test() is one load.
// Memory: comms, listeners and contexts belong to the plugin until they are closed; requests come from a pool of each
// comm. Message buffers are borrowed until test() says done or the comm is closed.
// Threads: as NCCL calls: different comms from different threads, one comm's isend/irecv/test from one.
// Failures: each is logged as a warning before it is returned. A peer that dies or can't be reached gives kRemoteError,
// lengths or settings that differ give kInvalidUsage. A failed comm stays failed, and so does its communicator: NCCL
// ends the thread that moves messages at the first error, so all of its peers are told (plugins/nccl/contexts.h). No
// exception leaves.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plugins/nccl/abi/types.h"

namespace canarynet::nccl {

inline constexpr const char* kName = "Canary";
inline constexpr int kReceivesMax = 8;  // in a grouped receive; the properties advertise one

// `context` may be null: versions before v11 have none.
abi::Result net_init(void** context, abi::Logger logger);
abi::Result net_finalize(void* context);
abi::Result net_devices(int* count);
// All versions of the properties are made of these.
abi::Result net_speed_mbit(int device, int* speed);

abi::Result net_listen(void* context, int device, void* handle, void** listen_comm);
abi::Result net_connect(void* context, int device, const void* handle, void** send_comm);
abi::Result net_accept(void* listen_comm, void** receive_comm);
abi::Result net_close_listen(void* listen_comm);
abi::Result net_close(void* comm);  // of either direction
// Returns `result`. A call on this comm was refused with it before it came here, since its communicator has failed.
// Peers hear `why`.
abi::Result net_end(void* comm, abi::Result result, const char* why);

abi::Result net_register(void* comm, void* data, std::size_t bytes, int type, void** registration);
abi::Result net_deregister(void* comm, void* registration);

abi::Result net_isend(void* send_comm, void* data, std::size_t bytes, int tag, void* registration, void** request);
abi::Result net_irecv(void* receive_comm, int count, void** data, const std::size_t* bytes, const int* tags,
                      void** registrations, void** request);
// Does nothing: only host memory is taken, so there is nothing to flush.
abi::Result net_iflush(void** request);
abi::Result net_test(void* request, int* done, int* bytes);

}  // namespace canarynet::nccl
