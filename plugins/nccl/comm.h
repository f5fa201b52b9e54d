// plugins/nccl/comm.h -- a connection as NCCL uses it: one direction, 32 requests that are handed out again and again.
//
// Threads: requests are taken, tested and given back by one thread; `context` belongs to plugins/nccl/contexts.h.
#pragma once

#include "canarynet/canarynet.h"
#include "plugins/nccl/abi/types.h"
#include "plugins/nccl/process_endpoint.h"

namespace canarynet::nccl {

struct Comm;
struct Context;

struct Request {
  canary_request* inner = nullptr;  // null: it is not in flight, or is the parent process's
  Comm* comm = nullptr;
  int count = 1;  // how many lengths test() returns
  Request* next = nullptr;
};

struct Comm {
  canary_connection* connection = nullptr;
  ProcessEndpoint::Use use;
  Context* context = nullptr;  // the comm shares its fate; null: that context has ended
  bool sends = false;
  abi::Result failed = abi::Result::kSuccess;
  char why[512] = "";  // once the comm has failed; does not change any more
  Request* free = nullptr;
  Request requests[abi::kRequestsMax];

  Comm(canary_connection* its_connection, const ProcessEndpoint::Use& its_use, Context* its_context, bool it_sends)
      : connection(its_connection), use(its_use), context(its_context), sends(it_sends) {
    for (int i = abi::kRequestsMax; i-- > 0;) {
      requests[i].comm = this;
      give(&requests[i]);
    }
  }
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
  // Returns null if all are in flight.
  Request* take() {
    Request* r = free;
    if (r != nullptr) free = r->next;
    return r;
  }
  void give(Request* r) {
    r->inner = nullptr;
    r->next = free;
    free = r;
  }
};

}  // namespace canarynet::nccl
