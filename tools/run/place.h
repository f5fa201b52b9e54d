// tools/run/place.h -- the NICs that a user means ("host1.nic0", "host0.*", "*.nic1", "*"), and a value for each NIC.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"

namespace canarynet::run {

struct Place {
  int host = -1;  // -1: all
  int nic = -1;   // -1: all

  bool covers(int h, int k) const { return (host < 0 || host == h) && (nic < 0 || nic == k); }
};

// The error says what `text` would have to be, but not what it was.
Result<Place> parse_place(std::string_view text, int hosts, int nics);

// An option's values for NICs: one for all or one per NIC index, and others for some places. The last one that covers a
// NIC counts.
template <typename T>
struct PerNic {
  struct Own {
    Place place;
    T value;
  };
  std::vector<T> by_nic;
  std::vector<Own> own;

  bool empty() const { return by_nic.empty() && own.empty(); }
  T at(int host, int nic, T none) const {
    T value = by_nic.empty() ? none : by_nic[by_nic.size() == 1 ? 0 : static_cast<std::size_t>(nic)];
    for (const Own& o : own) {
      if (o.place.covers(host, nic)) value = o.value;
    }
    return value;
  }
};

}  // namespace canarynet::run
