// plugins/nccl/net.h -- one aggregated network device over the library's connections, without regard to the version of
// NCCL's interface.
//
// What: plugins/nccl/net_versions.cc wraps these for each version. Nothing here waits for a peer but the end of the
// process's last user (finalize, or a last close): up to 0.5 s, until peers have heard. I/O is done by the endpoint's
// own thread, and test() is one load.
// Memory: comms, listeners and contexts belong to the plugin until they are closed; requests come from a pool of each
// comm. Message buffers are borrowed until test() says done or the comm is closed.
// Threads: as NCCL calls: different comms from different threads, one comm's isend/irecv/test from one.
// Failures: each is logged as a warning before it is returned; a peer that dies or can't be reached is kRemoteError,
// lengths or settings that differ are kInvalidUsage. A failed comm stays failed, and so does its communicator: NCCL
// ends the thread that moves messages at the first error, so all of its peers are told (plugins/nccl/contexts.h). No
// exception leaves.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plugins/nccl/abi/types.h"

namespace canarynet::nccl {

inline constexpr const char* kName = "Canary";
inline constexpr int kReceivesMax = 8;  // in a grouped receive; one is advertised

// `context` may be null: versions before v11 have none.
abi::Result net_init(void** context, abi::Logger logger);
abi::Result net_finalize(void* context);
abi::Result net_devices(int* count);
// What all versions of the properties are made of.
abi::Result net_speed_mbit(int device, int* speed);

abi::Result net_listen(void* context, int device, void* handle, void** listen_comm);
abi::Result net_connect(void* context, int device, const void* handle, void** send_comm);
abi::Result net_accept(void* listen_comm, void** receive_comm);
abi::Result net_close_listen(void* listen_comm);
abi::Result net_close(void* comm);  // of either direction
// Returns `result`, with which a call on this comm was refused before it came here: its communicator has failed. Peers
// hear `why`.
abi::Result net_end(void* comm, abi::Result result, const char* why);

abi::Result net_register(void* comm, void* data, std::size_t bytes, int type, void** registration);
abi::Result net_deregister(void* comm, void* registration);

abi::Result net_isend(void* send_comm, void* data, std::size_t bytes, int tag, void* registration, void** request);
abi::Result net_irecv(void* receive_comm, int count, void** data, const std::size_t* bytes, const int* tags,
                      void** registrations, void** request);
// There is nothing to flush: only host memory is taken.
abi::Result net_iflush(void** request);
abi::Result net_test(void* request, int* done, int* bytes);

}  // namespace canarynet::nccl
