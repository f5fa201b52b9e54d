// discovery/reverse_path.h -- NICs that the kernel makes deaf: under strict reverse-path filtering (rp_filter=1) it
// drops what comes in by another NIC than the one by which it would answer. Reads /proc and netlink; start-up only.
#pragma once

#include <span>
#include <string>

#include "topology/rails.h"

namespace canarynet {

// What the kernel is asked; tests answer in its place.
struct ReversePathView {
  // The filter in force for what comes in by the device: 0 none, 1 strict, 2 loose; -1 where that is not told.
  int (*filter_of)(const std::string& device);
  // The device over which the kernel would send from one of its own addresses; "" where there is no such way, or where
  // `to` is this host itself.
  std::string (*device_towards)(const Address& from, const Address& to);
};
ReversePathView kernels_reverse_path();

// Of the rails that share a subnet, the first one that hears nothing of it, as a sentence; "" where all hear.
std::string deaf_rail(std::span<const Rail> rails, const ReversePathView& view = kernels_reverse_path());

}  // namespace canarynet
