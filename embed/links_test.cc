// canary_links: what a rank is told of its links, entry by entry.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "canarynet/canarynet.hpp"
#include "embed/job_test_util.h"

namespace canarynet {
namespace {

using test::last_error;

void exchange(test::Job& job, std::size_t count) {
  job.each([&](int r) {
    std::vector<float> v(count, 1);
    EXPECT_EQ(canary_all_reduce(job.world(r), v.data(), v.data(), count, CANARY_F32, CANARY_SUM, nullptr), CANARY_OK)
        << last_error().message;
  });
}

std::vector<canary_link_stats> links_of(canary_context* context, std::size_t capacity = 32) {
  std::vector<canary_link_stats> links(capacity);
  std::size_t count = 0;
  links[0].struct_size = sizeof links[0];
  EXPECT_EQ(canary_links(context, links.data(), capacity, &count), CANARY_OK) << last_error().message;
  EXPECT_LE(count, capacity);
  links.resize(count);
  return links;
}

TEST(Links, AreOneForEachPeerAndNicAndSayWhatIsKnown) {
  test::Job job({{"host_id=a", "rails=127.9.0.1/24,127.9.1.1/24"},
                 {"host_id=b", "rails=127.9.0.2/24,127.9.1.2/24"},
                 {"host_id=c", "rails=127.9.0.3/24,127.9.1.3/24"}});
  ASSERT_TRUE(job.joined());
  for (int i = 0; i < 4; ++i) exchange(job, 1 << 20);
  const auto links = links_of(job.context(1));
  ASSERT_EQ(links.size(), 4u);
  std::map<int, double> shares;
  std::map<int, std::uint64_t> bytes;
  for (const canary_link_stats& l : links) {
    EXPECT_EQ(l.struct_size, sizeof l);
    EXPECT_TRUE(l.rank == 0 || l.rank == 2) << l.rank;
    EXPECT_NE(std::string(l.host), "");
    EXPECT_NE(std::string(l.device), "");
    EXPECT_NE(std::string(l.remote_device), "");
    EXPECT_EQ(l.up, 1u);
    EXPECT_EQ(l.lane, 0u);
    EXPECT_GT(l.alpha_ns, 0u);
    EXPECT_LT(l.alpha_ns, 1'000'000'000u);
    EXPECT_LT(l.age_ns, 10'000'000'000u);
    shares[l.rank] += l.share;
    bytes[l.rank] += l.transmit_bytes;
  }
  for (const int peer : {0, 2}) EXPECT_NEAR(shares[peer], 1, 1e-9);
  EXPECT_GT(bytes[0] + bytes[2], 4u << 20);
  for (const canary_link_stats& l : links) {
    EXPECT_NEAR(l.share, static_cast<double>(l.transmit_bytes) / static_cast<double>(bytes[l.rank]), 1e-9);
  }
}

TEST(Links, AreCountedWhereThereIsNoRoomForThem) {
  test::Job job({{"host_id=a"}, {"host_id=b"}, {"host_id=c"}});
  ASSERT_TRUE(job.joined());
  const std::size_t all = links_of(job.context(0)).size();
  ASSERT_GE(all, 2u);
  std::size_t count = 0;
  EXPECT_EQ(canary_links(job.context(0), nullptr, 0, &count), CANARY_OK);
  EXPECT_EQ(count, all);
  canary_link_stats links[2];
  std::memset(links, 0x5a, sizeof links);
  links[0].struct_size = sizeof links[0];
  EXPECT_EQ(canary_links(job.context(0), links, 1, &count), CANARY_OK);
  EXPECT_EQ(count, all);
  EXPECT_EQ(links[1].struct_size, 0x5a5a5a5a5a5a5a5au) << "nothing is written past the capacity";
}

// A program that was built against a later header.
TEST(Links, LargerEntriesAreFilledAsFarAsThisLibraryKnowsThem) {
  struct Later {
    canary_link_stats known;
    std::uint64_t more[3];
  };
  test::Job job({{"host_id=a"}, {"host_id=b"}, {"host_id=c"}});
  ASSERT_TRUE(job.joined());
  Later later[8];
  std::memset(later, 0x5a, sizeof later);
  later[0].known.struct_size = sizeof later[0];
  std::size_t count = 0;
  ASSERT_EQ(canary_links(job.context(0), &later[0].known, 8, &count), CANARY_OK) << last_error().message;
  const auto links = links_of(job.context(0));
  ASSERT_EQ(count, links.size());
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_EQ(later[i].known.struct_size, sizeof later[i]);
    EXPECT_EQ(later[i].known.rank, links[i].rank);
    EXPECT_STREQ(later[i].known.device, links[i].device);
    for (const std::uint64_t m : later[i].more) EXPECT_EQ(m, 0u);
  }
}

TEST(Links, WrongArgumentsAreNamed) {
  test::Job job(1);
  ASSERT_TRUE(job.joined());
  canary_link_stats link;
  std::size_t count = 0;
  for (const std::size_t size : {std::size_t{0}, sizeof link - 8, sizeof link + 1}) {
    link.struct_size = size;
    EXPECT_EQ(canary_links(job.context(0), &link, 1, &count), CANARY_INVALID_ARGUMENT);
    EXPECT_NE(std::string(last_error().message).find("struct_size is " + std::to_string(size)), std::string::npos)
        << last_error().message;
  }
  link.struct_size = sizeof link;
  EXPECT_EQ(canary_links(job.context(0), nullptr, 1, &count), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(canary_links(job.context(0), &link, 1, nullptr), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(canary_links(nullptr, &link, 1, &count), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(canary_links(job.context(0), &link, 1, &count), CANARY_OK);
  EXPECT_EQ(count, 0u) << "a job of one has none";
}

TEST(Links, OfTheHostItselfAreSharedMemory) {
  test::Job job({{"host_id=a"}, {"host_id=a"}});
  ASSERT_TRUE(job.joined());
  exchange(job, 1000);
  const auto links = links_of(job.context(0));
  ASSERT_EQ(links.size(), 1u);
  EXPECT_STREQ(links[0].device, "shm");
  EXPECT_EQ(links[0].rank, 1);
}

}  // namespace
}  // namespace canarynet
