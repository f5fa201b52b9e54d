// tests/nccl/bootstrap.h -- NCCL's bootstrap for the harness: ranks exchange handles and counts over Unix sockets,
// never over a NIC.
//
// A full mesh of SOCK_SEQPACKET sockets whose paths lie in a folder that all ranks see (also from different network
// namespaces), so that killing any rank leaves the others connected. Calls block, each with a limit; one thread at a
// time. Messages are at most 64 KiB, in order per pair of ranks.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace nccltest {

using Millis = std::chrono::milliseconds;

class Bootstrap {
 public:
  Bootstrap() = default;
  ~Bootstrap();
  Bootstrap(const Bootstrap&) = delete;
  Bootstrap& operator=(const Bootstrap&) = delete;

  // Returns false with `error` if not all ranks came in time. `name` distinguishes meshes in one folder.
  bool join(const std::string& folder, const std::string& name, int rank, int size, Millis limit, std::string* error);
  int rank() const { return rank_; }
  int size() const { return size_; }

  // Returns false if the peer is gone (or, receiving, said nothing within the limit).
  bool send(int peer, const std::string& message);
  bool receive(int peer, std::string* message, Millis limit);
  // Collects every rank's message by rank; false if one is missing.
  bool all_gather(const std::string& mine, std::vector<std::string>* all, Millis limit);
  bool barrier(Millis limit);

 private:
  int rank_ = 0;
  int size_ = 0;
  int listener_ = -1;
  std::string path_;
  std::vector<int> peers_;  // by rank; -1: oneself, or not connected
};

}  // namespace nccltest
