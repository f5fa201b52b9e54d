// discovery/reverse_path.h -- finds NICs that the kernel makes deaf: under strict reverse-path filtering (rp_filter=1)
// it drops what comes in by a NIC other than the one by which it would answer. Reads /proc and netlink; start-up only.
#pragma once

#include <span>
#include <string>

#include "topology/rails.h"

namespace canarynet {

// The questions to the kernel; tests answer in its place.
struct ReversePathView {
  // The filter in force for what comes in by the device: 0 none, 1 strict, 2 loose; -1 if it is not known.
  int (*filter_of)(const std::string& device);
  // The device over which the kernel would send from one of its own addresses; "" if there is no such way, or if `to`
  // is this host itself.
  std::string (*device_towards)(const Address& from, const Address& to);
};
ReversePathView kernels_reverse_path();

// Names, in a sentence, the first of the rails sharing a subnet that hears nothing of it; "" if all hear.
std::string deaf_rail(std::span<const Rail> rails, const ReversePathView& view = kernels_reverse_path());

}  // namespace canarynet
