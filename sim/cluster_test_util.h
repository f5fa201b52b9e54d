// sim/cluster_test_util.h -- for tests: one operation on every rank of a simulated cluster, with its buffers.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "sim/cluster.h"
#include "sim/oracle.h"

namespace canarynet {

inline ClusterOptions flat_cluster(int hosts, int rails = 2, int ranks_per_host = 1) {
  ClusterOptions c;
  c.hosts = hosts;
  c.ranks_per_host = ranks_per_host;
  c.wiring = Wiring::flat(hosts, rails);
  c.fabric.nic = NicOptions::link(20_us, BytesPerSec::from_mbit(10'000));
  return c;
}

// Buffers and tickets of one collective on all ranks of a group. Must outlive the cluster's use of them.
class AllRanks {
 public:
  AllRanks(Cluster& cluster, const oracle::Shape& shape, bool in_place = false)
      : cluster_(cluster), shape_(shape), in_place_(in_place && oracle::can_be_in_place(shape)) {
    for (int r = 0; r < shape.ranks; ++r) {
      const std::size_t in = oracle::input_bytes(shape, r), out = oracle::output_bytes(shape, r);
      const bool shared = in_place_ && shape.collective != Collective::kBarrier;
      input_.emplace_back(shared ? std::max(in, out) : in);
      output_.emplace_back(shared ? 0 : out, std::byte{0xEE});
      counts_.push_back(oracle::counts_of(shape, r));
      tickets_.push_back(std::make_unique<OpTicket>());
      oracle::fill_input(shape, r, input_of(r));
    }
  }
  void submit(int rank, GroupMember* member = nullptr) {
    Submission s;
    s.member = member != nullptr ? member : cluster_.world(rank);
    s.ticket = tickets_[at(rank)].get();
    s.request = {.collective = shape_.collective,
                 .input = input_of(rank),
                 .output = output_of(rank),
                 .count = shape_.count,
                 .type = shape_.type,
                 .redop = shape_.redop,
                 .root = shape_.root,
                 .counts = counts_[at(rank)]};
    cluster_.submit(member != nullptr ? member->world_rank : rank, std::move(s));
  }
  void submit_all() {
    for (int r = 0; r < shape_.ranks; ++r) submit(r);
  }
  bool done(int rank) const { return tickets_[at(rank)]->done(); }
  bool all_done() const {
    for (int r = 0; r < shape_.ranks; ++r) {
      if (!done(r)) return false;
    }
    return true;
  }
  OpTicket& ticket(int rank) { return *tickets_[at(rank)]; }
  // Runs until every rank is done; then each must have succeeded with the exact result.
  void expect_exact(Nanos limit = 10_s) {
    ASSERT_TRUE(cluster_.run_until([this] { return all_done(); }, limit))
        << oracle::to_string(shape_) << " did not end";
    for (int r = 0; r < shape_.ranks; ++r) {
      ASSERT_EQ(ticket(r).code, CANARY_OK) << ticket(r).status.to_string();
      const std::string wrong = oracle::compare(shape_, r, output_of(r));
      ASSERT_EQ(wrong, "");
    }
  }

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  // nullptr where a rank has none.
  std::byte* input_of(int r) {
    if (oracle::input_bytes(shape_, r) == 0) return nullptr;
    return input_[at(r)].data() + (in_place_ ? oracle::in_place_input(shape_, r) : 0);
  }
  std::byte* output_of(int r) {
    if (oracle::output_bytes(shape_, r) == 0) return nullptr;
    return in_place_ ? input_[at(r)].data() + oracle::in_place_output(shape_, r) : output_[at(r)].data();
  }
  Cluster& cluster_;
  oracle::Shape shape_;
  bool in_place_;
  std::vector<std::vector<std::byte>> input_, output_;
  std::vector<std::vector<std::uint64_t>> counts_;
  std::vector<std::unique_ptr<OpTicket>> tickets_;
};

}  // namespace canarynet
