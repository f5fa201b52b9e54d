// Counters in shared memory, as other processes see them: what ranks and endpoints write there agrees with what they
// did.
#include <algorithm>
#include <map>

#include "daemon/ipc/counters_reader.h"
#include "embed/connections_test_util.h"

namespace canarynet {
namespace {

using ipc::CountersTable;
using ipc::LinkMetric;
using ipc::NicMetric;
using ipc::ProcessMetric;
using ipc::Role;
using test::last_error;
using test::TestEndpoint;

ipc::CountersScan scan(int pid = getpid()) {
  auto result = ipc::scan_counters(pid);
  EXPECT_TRUE(result.ok());
  auto s = result.take();
  for (const auto& note : s.notes) ADD_FAILURE() << note;
  return s;
}

// The process's tables until they are as wanted: the writers are up to 100 ms behind, heartbeats 200 ms apart.
template <typename Wanted>
ipc::CountersScan scan_until(Wanted wanted, int pid = getpid()) {
  ipc::CountersScan s;
  EXPECT_TRUE(test::poll_until([&] {
    s = scan(pid);
    if (wanted(s.tables)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return false;
  }));
  return s;
}

void exchange(const test::Ends& e, std::size_t bytes) {
  const auto out = test::bytes_of(1, bytes);
  std::vector<std::uint8_t> in(bytes);
  canary_request* r = test::receive(e.b, in.data(), in.size());
  canary_request* s = test::send(e.a, out.data(), out.size());
  ASSERT_EQ(test::wait(r), CANARY_OK) << last_error().message;
  ASSERT_EQ(test::wait(s), CANARY_OK) << last_error().message;
}

TEST(SharedCounters, OfTwoEndpointsAgreeWithWhatTheySentAndWithTheirStatistics) {
  TestEndpoint one({"rails=127.7.0.1/24,127.7.1.1/24", "transports=tcp"}), two({"rails=127.7.0.2/24,127.7.1.2/24"});
  const test::Ends e = test::join_ends(one, two), f = test::join_ends(one, two);
  constexpr std::uint64_t kBytes = 3'000'000;
  for (int i = 0; i < 4; ++i) ASSERT_NO_FATAL_FAILURE(exchange(e, kBytes));
  canary_nic_stats nics[2];
  std::size_t count = 0;
  ASSERT_EQ(canary_endpoint_stats(one.raw, nics, 2, &count), CANARY_OK);
  const auto s = scan_until([&](const auto& t) {
    return t.size() == 2 && t[0].table->at(ProcessMetric::kMessagesSent) == 4 &&
           t[0].table->nic[0].at(NicMetric::kTransmitBytes) >= nics[0].transmit_bytes &&
           t[1].table->at(ProcessMetric::kMessagesReceived) == 4;
  });
  const CountersTable &a = *s.tables[0].table, &b = *s.tables[1].table;
  EXPECT_EQ(a.role, Role::kEndpoint);
  EXPECT_EQ(a.rank, -1);
  EXPECT_STREQ(a.process, "shared_counters_test");
  EXPECT_STREQ(a.build, canary_version());
  EXPECT_EQ(a.at(ProcessMetric::kConnections), 2u);
  EXPECT_EQ(a.at(ProcessMetric::kPeers), 1u);
  EXPECT_EQ(a.at(ProcessMetric::kMessageBytesSent), 4 * kBytes);
  EXPECT_EQ(b.at(ProcessMetric::kMessagesReceived), 4u);
  EXPECT_EQ(b.at(ProcessMetric::kMessageBytesReceived), 4 * kBytes);
  EXPECT_EQ(a.at(ProcessMetric::kMessagesInFlight), 0u);
  EXPECT_EQ(a.at(ProcessMetric::kMessageBytesInFlight), 0u);
  ASSERT_EQ(a.nics, 2u);
  std::uint64_t sent = 0, frames = 0;
  for (std::uint32_t i = 0; i < a.nics; ++i) {
    const ipc::NicRow& row = a.nic[i];
    EXPECT_STREQ(row.device, nics[i].device);
    EXPECT_STREQ(row.transport, "tcp");
    EXPECT_EQ(row.at(NicMetric::kUp), 1u);
    EXPECT_EQ(row.at(NicMetric::kLanesUp), 1u);
    EXPECT_LT(row.at(NicMetric::kTransmitBytes), nics[i].transmit_bytes + 4000) << "heartbeats since";
    sent += row.at(NicMetric::kTransmitBytes);
    frames += row.at(NicMetric::kTransmitFrames);
  }
  EXPECT_GT(sent, 4 * kBytes);
  EXPECT_GT(frames, 4 * kBytes / (128 << 10));
  ASSERT_EQ(a.links, 2u);
  const std::string peer = a.link[0].peer;
  EXPECT_NE(peer.find(":" + std::to_string(getpid())), std::string::npos) << peer;
  EXPECT_EQ(std::string(a.link[1].remote).rfind("127.7.1.2:", 0), 0u) << a.link[1].remote;
  EXPECT_EQ(a.link[0].at(LinkMetric::kUp), 1u);
  EXPECT_GT(a.link[0].at(LinkMetric::kSmoothedRtt), 0u);
  EXPECT_LT(a.link[0].at(LinkMetric::kSmoothedRtt), 5'000'000'000u);
  EXPECT_GT(a.link[0].at(LinkMetric::kRate) + a.link[1].at(LinkMetric::kRate), 0u);
  ASSERT_EQ(b.links, 2u);
  EXPECT_STREQ(b.link[0].remote, "rail0") << "the accepting side knows its number only";
  ASSERT_EQ(canary_close(f.a), CANARY_OK);
  ASSERT_EQ(canary_close(f.b), CANARY_OK);
  scan_until([](const auto& t) {
    return t[0].table->at(ProcessMetric::kConnections) == 1 && t[1].table->at(ProcessMetric::kConnections) == 1;
  });
}

TEST(SharedCounters, OfRanksTellTheJobItsOperationsAndSharedMemory) {
  test::Job job({{"host_id=a"}, {"host_id=a"}, {"host_id=b"}});
  ASSERT_TRUE(job.joined());
  constexpr std::size_t kCount = 100'000;
  job.each([&](int r) {
    std::vector<float> x(kCount, 1.0f);
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(canary_all_reduce(job.world(r), x.data(), x.data(), kCount, CANARY_F32, CANARY_SUM, nullptr),
                CANARY_OK);
    }
  });
  const auto s = scan_until([](const auto& t) {
    return t.size() == 3 &&
           std::all_of(t.begin(), t.end(), [](const auto& p) { return p.table->at(ProcessMetric::kOperations) == 3; });
  });
  std::map<int, const CountersTable*> by_rank;
  for (const auto& t : s.tables) by_rank[t.table->rank] = t.table.get();
  ASSERT_EQ(by_rank.size(), 3u);
  const CountersTable& t = *by_rank[0];
  EXPECT_EQ(t.role, Role::kRank);
  EXPECT_EQ(t.world_size, 3);
  EXPECT_EQ(t.local_ranks, 1);
  EXPECT_STREQ(t.host, "a");
  EXPECT_EQ(t.at(ProcessMetric::kPeers), 2u);
  EXPECT_EQ(t.at(ProcessMetric::kOperationsInFlight), 0u);
  EXPECT_EQ(t.at(ProcessMetric::kOperationFailures), 0u);
  ASSERT_EQ(t.nics, 2u);
  EXPECT_STREQ(t.nic[0].device, "lo");
  EXPECT_STREQ(t.nic[1].transport, "shm");
  EXPECT_GT(t.nic[0].at(NicMetric::kTransmitBytes) + t.nic[1].at(NicMetric::kTransmitBytes), kCount * 4);
  ASSERT_EQ(t.links, 2u);
  EXPECT_STREQ(t.link[0].peer, "rank 1");
  EXPECT_EQ(t.link[0].nic, 1u) << "they share a host";
  EXPECT_STREQ(t.link[1].peer, "rank 2");
  EXPECT_EQ(t.link[1].nic, 0u);
  EXPECT_EQ(by_rank[2]->nic[1].at(NicMetric::kUp), 1u) << "nobody is expected there";
}

TEST(SharedCounters, EndWithTheirEndpoint) {
  EXPECT_EQ(scan().tables.size(), 0u);
  {
    TestEndpoint one;
    EXPECT_EQ(scan().tables.size(), 1u) << "visible at once";
  }
  EXPECT_EQ(scan().tables.size(), 0u);
}

TEST(SharedCounters, OfAnIdleEndpointAreNotWrittenAgain) {
  TestEndpoint one;
  // How long its thread takes to fall idle is the machine's affair; one that went on would write every 100 ms.
  EXPECT_TRUE(test::poll_until([] {
    const auto before = scan().tables[0].table->updated_ns;
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    return scan().tables[0].table->updated_ns == before;
  }));
}

TEST(SharedCounters, OfAKilledProcessAreGoneAndItsPeerShowsTheLinkEnd) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  test::Process victim([&]() -> std::string {
    TestEndpoint e({"transports=tcp"});
    test::Handle handle;
    canary_listener* l = e.listen(&handle);
    if (write(ends[1], handle.data(), handle.size()) != static_cast<ssize_t>(handle.size())) return "write";
    test::accept(l);
    std::this_thread::sleep_for(std::chrono::seconds(60));
    return "";
  });
  test::Handle handle;
  ASSERT_EQ(read(ends[0], handle.data(), handle.size()), static_cast<ssize_t>(handle.size()));
  TestEndpoint one;
  test::connect(one, handle);
  scan_until([](const auto& t) { return t.size() == 1 && t[0].table->links == 1; });
  ASSERT_EQ(scan(victim.pid()).tables.size(), 1u);
  EXPECT_STREQ(scan(victim.pid()).tables[0].table->nic[0].device, "lo");
  const pid_t pid = victim.pid();
  victim.kill();
  ASSERT_TRUE(test::poll_until([&] { return scan(pid).tables.empty(); }));
  const auto s = scan_until([](const auto& t) { return t[0].table->links == 0; });
  EXPECT_EQ(s.tables[0].table->nic[0].at(NicMetric::kUp), 1u) << "the peer died, not the NIC";
  EXPECT_GT(s.tables[0].table->nic[0].at(NicMetric::kTransmitBytes), 0u);
  // Nor is it the NIC's fault that nobody answers there any more.
  canary_connection* c = nullptr;
  ASSERT_EQ(canary_connect(one.raw, handle.data(), &c), CANARY_WOULD_BLOCK);
  const auto dialling = scan_until([](const auto& t) { return t[0].table->links == 1; });
  EXPECT_EQ(dialling.tables[0].table->nic[0].at(NicMetric::kUp), 1u);
  EXPECT_EQ(dialling.tables[0].table->link[0].at(LinkMetric::kUp), 0u);
  ASSERT_EQ(canary_close(c), CANARY_OK);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace canarynet
