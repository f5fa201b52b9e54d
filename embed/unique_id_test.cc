// Joining by a unique id: ranks as threads and as processes on loopback, ids that are wrong, old, or somebody else's.
#include "control/unique_id.h"

#include <cstdlib>
#include <cstring>

#include "canarynet/canarynet.hpp"
#include "embed/job_test_util.h"

namespace canarynet {
namespace {

using control::kUniqueIdBytes;
using test::last_error;
using test::Process;
using test::Strings;

canary_status join_by(const canary_unique_id* id, int rank, int world_size, canary_context** out,
                      const Strings& settings = {"join_timeout=20s"}) {
  std::vector<const char*> pointers;
  for (const std::string& s : settings) pointers.push_back(s.c_str());
  canary_config c = CANARY_CONFIG_INIT;
  c.rank = rank;
  c.world_size = world_size;
  c.unique_id = id;
  c.settings = pointers.data();
  c.settings_count = pointers.size();
  return canary_init(&c, out);
}

// Sums the ranks + 1; "" when right.
std::string exchange(canary_context* context) {
  const int ranks = canary_world_size(context);
  std::vector<int> v(1000, canary_rank(context) + 1);
  if (canary_all_reduce(canary_world(context), v.data(), v.data(), v.size(), CANARY_I32, CANARY_SUM, nullptr) !=
      CANARY_OK)
    return last_error().message;
  for (const int x : v) {
    if (x != ranks * (ranks + 1) / 2) return "a wrong sum";
  }
  return "";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string hex_of(const canary_unique_id& id) { return control::unique_id_text(id.bytes); }

// The same id with one field changed and a checksum that fits.
canary_unique_id altered(const canary_unique_id& id, void (*change)(control::UniqueId*)) {
  auto parsed = control::decode_unique_id(id.bytes);
  EXPECT_TRUE(parsed.ok()) << parsed.status().text();
  change(&parsed.value());
  const auto bytes = control::encode(parsed.value());
  canary_unique_id out;
  std::memcpy(out.bytes, bytes.data(), bytes.size());
  return out;
}

class UniqueIdJoin : public testing::Test {
 protected:
  UniqueIdJoin() {
    unsetenv("CANARY_INSECURE");
    unsetenv("CANARY_JOIN");
    unsetenv("CANARY_SOCKET_IFNAME");
    unsetenv("CANARY_RAILS");
  }
};

TEST_F(UniqueIdJoin, ThreadsMeetByTheSameBytes) {
  canary_unique_id id;
  ASSERT_EQ(canary_get_unique_id(&id), CANARY_OK) << last_error().message;
  test::on_threads(4, [&](int r) {
    canary_context* context = nullptr;
    ASSERT_EQ(join_by(&id, r, 4, &context), CANARY_OK) << last_error().message;
    EXPECT_EQ(exchange(context), "");
    EXPECT_EQ(canary_finalize(context), CANARY_OK);
  });
}

TEST_F(UniqueIdJoin, WithoutInsecureAnIdHoldsLoopbackAlone) {
  canary_unique_id id;
  ASSERT_EQ(canary_get_unique_id(&id), CANARY_OK) << last_error().message;
  const auto parsed = control::decode_unique_id(id.bytes);
  ASSERT_TRUE(parsed.ok());
  ASSERT_EQ(parsed.value().addresses.size(), 1u);
  EXPECT_TRUE(parsed.value().addresses[0].loopback());
  canary_context* context = nullptr;  // closes the listener
  ASSERT_EQ(join_by(&id, 0, 1, &context), CANARY_OK) << "a world of one needs nobody";
  canary_finalize(context);
  canary_unique_id second;
  ASSERT_EQ(canary_get_unique_id(&second), CANARY_OK);
  EXPECT_NE(hex_of(second), hex_of(id));
  ASSERT_EQ(join_by(&second, 0, 1, &context), CANARY_OK);
  canary_finalize(context);
}

// Rank 0 hands the id to processes that know nothing else of each other, through a pipe and through the environment.
TEST_F(UniqueIdJoin, ProcessesMeetAlsoWhenTheOthersComeFirst) {
  int pipes[3][2];
  for (auto& p : pipes) ASSERT_EQ(pipe(p), 0);
  std::vector<Process> ranks;
  ranks.emplace_back([&]() -> std::string {
    canary_unique_id id;
    if (canary_get_unique_id(&id) != CANARY_OK) return last_error().message;
    for (auto& p : pipes) {
      if (write(p[1], id.bytes, sizeof id.bytes) != sizeof id.bytes) return "pipe";
    }
    usleep(300'000);  // their connections wait in the listener's queue
    canary_context* context = nullptr;
    if (join_by(&id, 0, 4, &context) != CANARY_OK) return last_error().message;
    std::string wrong = exchange(context);
    canary_finalize(context);
    return wrong.empty() ? "fine" : wrong;
  });
  for (int r = 1; r < 4; ++r) {
    ranks.emplace_back([&, r]() -> std::string {
      canary_unique_id id;
      if (read(pipes[r - 1][0], id.bytes, sizeof id.bytes) != sizeof id.bytes) return "pipe";
      canary_context* context = nullptr;
      if (r == 3) setenv("CANARY_JOIN", hex_of(id).c_str(), 1);
      if (join_by(r == 3 ? nullptr : &id, r, 4, &context) != CANARY_OK) return last_error().message;
      std::string wrong = exchange(context);
      canary_finalize(context);
      return wrong.empty() ? "fine" : wrong;
    });
  }
  for (Process& p : ranks) EXPECT_EQ(p.report(), "fine");
  for (auto& p : pipes) {
    close(p[0]);
    close(p[1]);
  }
}

TEST_F(UniqueIdJoin, TheCppHeaderDoesTheSame) {
  const canary_unique_id id = get_unique_id();
  test::on_threads(2, [&](int r) {
    canarynet::Context context({.rank = r, .world_size = 2, .unique_id = id});
    std::vector<float> v = {1};
    context.world().all_reduce(v);
    EXPECT_EQ(v[0], 2);
  });
}

TEST_F(UniqueIdJoin, AnotherJobsTokenIsTurnedAwayByNameAndTheJobGoesOn) {
  canary_unique_id id;
  ASSERT_EQ(canary_get_unique_id(&id), CANARY_OK) << last_error().message;
  const canary_unique_id stale = altered(id, [](control::UniqueId* i) { ++i->token; });
  const std::string address = "tcp://" + control::decode_unique_id(id.bytes).value().addresses[0].to_string();
  test::on_threads(2, [&](int r) {
    canary_context* context = nullptr;
    if (r == 1) {
      EXPECT_EQ(join_by(&stale, 1, 2, &context), CANARY_JOIN);
      EXPECT_TRUE(has(last_error().message, "rank 1")) << last_error().message;
      EXPECT_TRUE(has(last_error().message, "unique id of another job")) << last_error().message;
      EXPECT_EQ(last_error().rank, 1);
      EXPECT_EQ(test::init(address, 1, 2, {}, &context), CANARY_JOIN);
      EXPECT_TRUE(has(last_error().message, "it came by address")) << last_error().message;
    }
    ASSERT_EQ(join_by(&id, r, 2, &context), CANARY_OK) << last_error().message;
    EXPECT_EQ(exchange(context), "");
    canary_finalize(context);
  });
}

TEST_F(UniqueIdJoin, AnIdAtAnOrdinaryAddressIsTurnedAwayToo) {
  canary_unique_id id;
  ASSERT_EQ(canary_get_unique_id(&id), CANARY_OK) << last_error().message;
  static int port;
  port = test::free_port();
  const canary_unique_id elsewhere = altered(id, [](control::UniqueId* i) {
    i->port = static_cast<std::uint16_t>(port);
    for (Address& a : i->addresses) a.port = i->port;
  });
  test::on_threads(2, [&](int r) {
    canary_context* context = nullptr;
    if (r == 1) {
      EXPECT_EQ(join_by(&elsewhere, 1, 2, &context), CANARY_JOIN);
      EXPECT_TRUE(has(last_error().message, "this job is joined by address")) << last_error().message;
    }
    ASSERT_EQ(test::init(test::join_url(port), r, 2, {}, &context), CANARY_OK) << last_error().message;
    canary_finalize(context);
  });
  canary_context* context = nullptr;
  ASSERT_EQ(join_by(&id, 0, 1, &context), CANARY_OK);
  canary_finalize(context);
}

// The first address answers nobody, the second is rank 0's.
TEST_F(UniqueIdJoin, AddressesAreTriedInTurn) {
  canary_unique_id id;
  ASSERT_EQ(canary_get_unique_id(&id), CANARY_OK) << last_error().message;
  const canary_unique_id both = altered(id, [](control::UniqueId* i) {
    i->addresses.insert(i->addresses.begin(), Address::ipv4(127, 9, 9, 9, 0, i->port));
    i->addresses[1].prefix_bits = 0;  // none is on a network of this host
  });
  test::on_threads(2, [&](int r) {
    canary_context* context = nullptr;
    ASSERT_EQ(join_by(r == 0 ? &id : &both, r, 2, &context), CANARY_OK) << last_error().message;
    EXPECT_EQ(exchange(context), "");
    canary_finalize(context);
  });
}

TEST_F(UniqueIdJoin, OnlyItsMakerCanBeRankZeroAndOnlyOnce) {
  canary_unique_id id;
  ASSERT_EQ(canary_get_unique_id(&id), CANARY_OK) << last_error().message;
  Process child([&]() -> std::string {
    canary_context* context = nullptr;
    const canary_status code = join_by(&id, 0, 2, &context);
    return code == CANARY_JOIN ? last_error().message : "joined";
  });
  const std::string why = child.report();
  EXPECT_TRUE(has(why, "rank 0 must be the process that called canary_get_unique_id")) << why;

  test::on_threads(2, [&](int r) {
    canary_context* context = nullptr;
    ASSERT_EQ(join_by(&id, r, 2, &context), CANARY_OK) << last_error().message;
    canary_finalize(context);
  });
  canary_context* context = nullptr;
  EXPECT_EQ(join_by(&id, 0, 2, &context), CANARY_JOIN);
  EXPECT_TRUE(has(last_error().message, "an id serves one job")) << last_error().message;
}

TEST_F(UniqueIdJoin, WrongBytesAreRefusedBeforeAnythingIsDialled) {
  canary_unique_id id = {};
  canary_context* context = nullptr;
  EXPECT_EQ(join_by(&id, 1, 2, &context), CANARY_INVALID_SETTING);
  EXPECT_TRUE(has(last_error().message, "all zeroes")) << last_error().message;
  EXPECT_TRUE(has(last_error().message, "canary_config.unique_id")) << last_error().message;
  ASSERT_EQ(canary_get_unique_id(&id), CANARY_OK);
  canary_unique_id damaged = id;
  damaged.bytes[50] ^= 4;
  EXPECT_EQ(join_by(&damaged, 1, 2, &context), CANARY_INVALID_SETTING);
  EXPECT_TRUE(has(last_error().message, "checksum")) << last_error().message;
  damaged = id;
  damaged.bytes[7] = 200;
  EXPECT_EQ(join_by(&damaged, 1, 2, &context), CANARY_VERSION);
  EXPECT_EQ(test::init("id:12", 1, 2, {}, &context), CANARY_INVALID_SETTING);
  EXPECT_TRUE(has(last_error().message, "256 hexadecimal digits")) << last_error().message;

  canary_config both = CANARY_CONFIG_INIT;
  both.join = "tcp://127.0.0.1:1";
  both.unique_id = &id;
  both.rank = 1;
  both.world_size = 2;
  EXPECT_EQ(canary_init(&both, &context), CANARY_INVALID_ARGUMENT);
  EXPECT_TRUE(has(last_error().message, "both join and unique_id")) << last_error().message;
  EXPECT_EQ(canary_get_unique_id(nullptr), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(context, nullptr);
  ASSERT_EQ(join_by(&id, 0, 1, &context), CANARY_OK);
  canary_finalize(context);
}

TEST_F(UniqueIdJoin, ALoopbackIdOfAnotherHostSaysWhatToSet) {
  canary_unique_id id;
  ASSERT_EQ(canary_get_unique_id(&id), CANARY_OK);
  const canary_unique_id foreign = altered(id, [](control::UniqueId* i) { ++i->host; });
  canary_context* context = nullptr;
  EXPECT_EQ(join_by(&foreign, 1, 2, &context), CANARY_JOIN);
  EXPECT_TRUE(has(last_error().message, "another host")) << last_error().message;
  EXPECT_TRUE(has(last_error().message, "CANARY_INSECURE=1")) << last_error().message;
  ASSERT_EQ(join_by(&id, 0, 1, &context), CANARY_OK);
  canary_finalize(context);
}

TEST_F(UniqueIdJoin, BeyondLoopbackNeedsTheWordOnBothSides) {
  canary_unique_id id;
  ASSERT_EQ(canary_get_unique_id(&id), CANARY_OK);
  const canary_unique_id far =
      altered(id, [](control::UniqueId* i) { i->addresses = {Address::ipv4(203, 0, 113, 7, 24, i->port)}; });
  canary_context* context = nullptr;
  EXPECT_EQ(join_by(&far, 1, 2, &context), CANARY_INSECURE);
  EXPECT_TRUE(has(last_error().message, "203.0.113.7")) << last_error().message;
  EXPECT_TRUE(has(last_error().message, "CANARY_INSECURE=1")) << last_error().message;
  ASSERT_EQ(join_by(&id, 0, 1, &context), CANARY_OK);
  canary_finalize(context);
}

TEST_F(UniqueIdJoin, OfIdsThatNobodyUsesTheOldestMakesRoom) {
  canary_unique_id ids[65];
  for (int i = 0; i < 65; ++i) ASSERT_EQ(canary_get_unique_id(&ids[i]), CANARY_OK) << i << last_error().message;
  canary_context* context = nullptr;
  EXPECT_EQ(join_by(&ids[0], 0, 2, &context), CANARY_JOIN);
  EXPECT_TRUE(has(last_error().message, "64 others since")) << last_error().message;
  for (int i = 1; i < 65; ++i) {
    ASSERT_EQ(join_by(&ids[i], 0, 1, &context), CANARY_OK);
    canary_finalize(context);
  }
}

TEST_F(UniqueIdJoin, CallersBuiltBeforeItKeepWorking) {
  struct Older {  // canary_config as it was
    size_t struct_size;
    const char* join;
    int rank;
    int world_size;
    const char* const* settings;
    size_t settings_count;
  };
  ASSERT_EQ(sizeof(Older), offsetof(canary_config, unique_id));
  // The memory behind it is not looked at.
  struct {
    Older config;
    std::uintptr_t behind[4];
  } memory = {{sizeof(Older), nullptr, 0, 1, nullptr, 0}, {1, 1, 1, 1}};
  canary_context* context = nullptr;
  ASSERT_EQ(canary_init(reinterpret_cast<const canary_config*>(&memory), &context), CANARY_OK) << last_error().message;
  EXPECT_EQ(canary_world_size(context), 1);
  canary_finalize(context);
}

}  // namespace
}  // namespace canarynet
