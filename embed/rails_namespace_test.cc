// Rails beyond one subnet over real (virtual Ethernet) devices, and several in one: every NIC carries its share. Needs
// root.
#include "embed/rail_bed_test_util.h"

namespace canarynet {
namespace {

using test::both_nics_up;
using test::bytes_of;
using test::Handle;
using test::RailsNamespaceTest;
using test::Strings;
using test::sum_rounds;
using test::Wires;

INSTANTIATE_TEST_SUITE_P(Wires, RailsNamespaceTest,
                         ::testing::Values(Wires::kRouted, Wires::kRoutedIPv6, Wires::kPointToPoint, Wires::kOneSubnet,
                                           Wires::kOneSubnetIPv6),
                         [](const ::testing::TestParamInfo<Wires>& wires) { return name_of(wires.param); });

TEST_P(RailsNamespaceTest, AJobUsesEveryNicAndSumsExactly) {
  const auto reports = on_hosts([&](int host) -> std::string {
    canary_context* context = nullptr;
    if (test::init(join(), host, 2, settings(host, "auto"), &context) != CANARY_OK) return test::last_error().message;
    canary_nic_stats nics[4] = {};
    std::size_t count = 0;
    // An IPv6 link asks for its neighbours a second or two after it is up; so long it takes, too, until a neighbour
    // that was told a wrong hardware address has the right one.
    both_nics_up(context);
    // 4 x 8 MiB a time, half of each sent twice: two NICs that may use any rate share them about evenly, but on a busy
    // machine the first rounds may be over before the second one has proved what it can do.
    const auto began = std::chrono::steady_clock::now();
    for (float more = 1; more != 0;) {
      if (std::string wrong = sum_rounds(context, host); !wrong.empty()) return wrong;
      EXPECT_EQ(canary_stats(context, nics, 4, &count), CANARY_OK);
      const bool both = nics[0].transmit_bytes >= 2'000'000 && nics[1].transmit_bytes >= 2'000'000;
      more = both || test::seconds_since(began) > 10 ? 0 : 1;
      EXPECT_EQ(canary_all_reduce(canary_world(context), &more, &more, 1, CANARY_F32, CANARY_SUM, nullptr), CANARY_OK);
    }
    std::string out;
    for (std::size_t i = 0; i < 2; ++i) {
      if (nics[i].transmit_bytes < 2'000'000) out += std::string(nics[i].device) + " carried next to nothing; ";
      if (nics[i].lanes_up != 1) out += std::string(nics[i].device) + " has not one lane; ";
    }
    // Nobody leaves before the other has counted.
    EXPECT_EQ(canary_barrier(canary_world(context), nullptr), CANARY_OK);
    EXPECT_EQ(canary_finalize(context), CANARY_OK);
    return out;
  });
  EXPECT_EQ(reports[0], "");
  EXPECT_EQ(reports[1], "");
}

TEST_P(RailsNamespaceTest, PairedBySubnetOnlyRanksCannotMeetAndTheErrorSaysWho) {
  if (one_subnet(GetParam())) GTEST_SKIP() << "they share one";
  const auto reports = on_hosts([&](int host) -> std::string {
    canary_context* context = nullptr;
    if (test::init(join(), host, 2, settings(host, "subnet"), &context) != CANARY_OK) return test::last_error().message;
    float x = 1;
    const auto status = canary_all_reduce(canary_world(context), &x, &x, 1, CANARY_F32, CANARY_SUM, nullptr);
    std::string message = test::last_error().message;
    EXPECT_EQ(status, CANARY_UNREACHABLE) << message;
    EXPECT_EQ(canary_finalize(context), CANARY_OK);
    return message;
  });
  for (const std::string& message : reports) {
    EXPECT_NE(message.find("ranks 0 and 1"), std::string::npos) << message;
    EXPECT_NE(message.find("CANARY_RAIL_PAIRING"), std::string::npos) << message;
  }
}

TEST_P(RailsNamespaceTest, AConnectionUsesEveryNicAndDeliversExactly) {
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const auto data = bytes_of(7, 16 << 20);
  const auto reports = on_hosts([&](int host) -> std::string {
    Strings all = settings(host, "auto");
    all.push_back("rails=nic0,nic1");
    test::TestEndpoint endpoint(all);
    if (endpoint.raw == nullptr) return "no endpoint";
    Handle handle{};
    std::string out;
    if (host == 0) {
      canary_listener* listener = endpoint.listen(&handle);
      EXPECT_EQ(::write(pipe_ends[1], handle.data(), handle.size()), static_cast<ssize_t>(handle.size()));
      canary_connection* c = test::accept(listener);
      std::vector<std::uint8_t> in(data.size());
      for (std::uint8_t more = 1; more != 0;) {
        std::fill(in.begin(), in.end(), std::uint8_t{0});
        EXPECT_EQ(test::wait(test::receive(c, in.data(), in.size())), CANARY_OK) << test::last_error().message;
        if (in != data) out = "the bytes are not those that were sent";
        EXPECT_EQ(test::wait(test::receive(c, &more, 1)), CANARY_OK) << test::last_error().message;
      }
      // The other way, too, so that the sender can leave.
      EXPECT_EQ(test::wait(test::send(c, in.data(), 1)), CANARY_OK);
      EXPECT_EQ(canary_close(c), CANARY_OK);
      EXPECT_EQ(canary_close_listener(listener), CANARY_OK);
    } else {
      EXPECT_EQ(::read(pipe_ends[0], handle.data(), handle.size()), static_cast<ssize_t>(handle.size()));
      canary_connection* c = test::connect(endpoint, handle);
      // The second NIC's lane may come up a little later than the first one's.
      const auto began = std::chrono::steady_clock::now();
      for (std::uint8_t more = 1; more != 0;) {
        EXPECT_EQ(test::wait(test::send(c, data.data(), data.size())), CANARY_OK) << test::last_error().message;
        canary_nic_stats nics[4] = {};
        std::size_t count = 0;
        EXPECT_EQ(canary_endpoint_stats(endpoint.raw, nics, 4, &count), CANARY_OK);
        const bool both = nics[0].transmit_bytes >= data.size() / 4 && nics[1].transmit_bytes >= data.size() / 4;
        more = both || test::seconds_since(began) > 20 ? 0 : 1;
        if (more == 0 && !both) out = "one NIC carried next to nothing";
        EXPECT_EQ(test::wait(test::send(c, &more, 1)), CANARY_OK);
      }
      std::uint8_t last = 0;
      EXPECT_EQ(test::wait(test::receive(c, &last, 1)), CANARY_OK);
      EXPECT_EQ(canary_close(c), CANARY_OK);
    }
    return out;
  });
  EXPECT_EQ(reports[0], "");
  EXPECT_EQ(reports[1], "");
  for (const int fd : pipe_ends) ::close(fd);
}

}  // namespace
}  // namespace canarynet
