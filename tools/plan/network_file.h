// tools/plan/network_file.h -- reads a network from a TOML file: hosts, NICs, links that differ.
//
//   hosts = 4                  # required
//   ranks_per_host = 1
//   nics = ["500mbit", "125mbit"]   # rates of every host's NICs; required
//   alpha = "50us"             # start-up time of a message on any link; required
//   wiring = "flat"            # or "bcube:R,L": NIC l joins the hosts that differ in digit l
//   gamma = "0.1ns"            # per byte added                           [0]
//   post = "5us"               # to post one more message                 [0]
//   local_alpha = "2us"        # between ranks of one host                [0]
//   local_bandwidth = "40gbit" #                                          [free]
//
//   [[host]]                   # a host that differs
//   index = 3
//   nics = ["100mbit", "125mbit"]   # as many as every host has
//   alpha = "2ms"              # of all its links
//
//   [[link]]                   # a link that differs, in both directions unless one_way
//   from = 0
//   to = 2
//   nic = 1                    # of both ends                             [every one that joins them]
//   alpha = "5ms"
//   bandwidth = "50mbit"
//   missing = true             # there is none
//   one_way = true
//
// A link is as fast as the slower of its two NICs. Hosts, NICs and ranks count from 0.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "collectives/cost.h"
#include "topology/rails.h"

namespace canarynet::plan {

struct NetworkFile {
  int hosts = 0;
  int ranks_per_host = 1;
  int rails = 1;
  Reachability reach;        // of the ranks; those of one host meet through its memory
  std::vector<int> host_of;  // [rank]
  BCubeShape bcube;          // levels 0: flat, or several ranks on a host
  CostModel model;           // without links and pieces
  LinkCosts links;           // under the hosts' first ranks

  int ranks() const { return hosts * ranks_per_host; }
};

// `name` is for errors: "net.toml:12: link: there is no host 9; hosts are 0 to 3".
Result<NetworkFile> parse_network_file(std::string_view text, const std::string& name);
Result<NetworkFile> read_network_file(const std::string& path);

}  // namespace canarynet::plan
