// traffic.h -- how many bytes went over which NIC, on every rank, since a moment.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "canarynet/canarynet.hpp"

namespace train {

struct NicTraffic {
  int rank = 0;
  std::string device;
  std::uint64_t sent = 0;         // by Canary's count
  std::uint64_t kernel_sent = 0;  // by the kernel's, which also sees the headers of TCP and whatever else uses the NIC
  double share = 0;               // of what its rank sent
};

class Traffic {
 public:
  // Counts from here.
  explicit Traffic(canarynet::Context& context) : context_(context), start_(context.nics()) {}
  // Sent by this rank so far.
  std::vector<NicTraffic> own() const;
  // Every rank's; all ranks call.
  std::vector<NicTraffic> everybodys() const;

 private:
  canarynet::Context& context_;
  std::vector<canary_nic_stats> start_;
};

// Lines for people; the same as an array in JSON.
std::string traffic_text(const std::vector<NicTraffic>& nics);
std::string traffic_json(const std::vector<NicTraffic>& nics);
std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));

}  // namespace train
