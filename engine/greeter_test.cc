// The door for accepted lanes: how many may wait there, and who makes room.
#include "engine/greeter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "transport/strangers.h"

namespace canarynet {
namespace {

// A lane that only says where it comes from.
class QuietLane final : public Lane {
 public:
  QuietLane(int number, Address from, std::map<int, bool>* open) : number_(number), from_(from), open_(open) {
    (*open_)[number_] = true;
  }
  ~QuietLane() override { (*open_)[number_] = false; }
  bool send(const wire::Header& header, const std::byte* payload, std::uint64_t) override {
    told_header = header;
    told.assign(payload, payload + header.payload_bytes);
    return true;
  }
  void flush(Nanos) override {}
  bool cancel(std::uint64_t) override { return false; }
  void redirect(std::uint64_t) override {}
  std::size_t queued_bytes() const override { return 0; }
  bool up() const override { return true; }
  const LaneCounters& counters() const override { return counters_; }
  std::string description() const override { return "lane " + std::to_string(number_); }
  int rail() const override { return 0; }
  Address remote() const override { return from_; }

  wire::Header told_header;
  std::vector<std::byte> told;

 private:
  int number_;
  Address from_;
  std::map<int, bool>* open_;
  LaneCounters counters_;
};

class GreeterTest : public ::testing::Test, public GreeterHost {
 protected:
  GreeterTest() { greeter.serve(*this); }
  bool expects(const wire::HelloPayload&) const override { return true; }
  void on_hello(std::unique_ptr<Lane>& lane, const wire::Header&, const wire::HelloPayload&) override {
    taken.push_back(std::move(lane));
  }
  // Host `from` connects, from a port of its own.
  QuietLane* come(int from, Nanos now = {}) {
    const auto port = static_cast<std::uint16_t>(++number);
    auto lane =
        std::make_unique<QuietLane>(number, Address::ipv4(10, 0, 0, static_cast<std::uint8_t>(from), 0, port), &open);
    QuietLane* raw = lane.get();
    greeter.set_time(now);
    greeter.on_accept(std::move(lane));
    return raw;
  }
  void says_hello(Lane* lane, wire::HelloPayload hello = {.purpose = wire::kHelloChannel}) {
    const wire::Header h = wire::greeting(wire::Kind::kHello, &hello, sizeof hello);
    Arrival arrival;
    arrival.payload = {reinterpret_cast<const std::byte*>(&hello), sizeof hello};
    arrival.intact = true;
    greeter.on_frame(*lane, h, arrival);
  }
  std::size_t count() const {
    return static_cast<std::size_t>(std::count_if(open.begin(), open.end(), [](const auto& o) { return o.second; }));
  }

  int number = 0;
  std::map<int, bool> open;  // by number, from 1
  std::vector<std::unique_ptr<Lane>> taken;
  Greeter greeter{8};
};

TEST_F(GreeterTest, TheOldestOfTheSourceWithTheMostMakesRoom) {
  come(1);
  come(2);
  for (int i = 0; i < 6; ++i) come(3);  // 3 to 8
  come(4);
  EXPECT_FALSE(open[3]);
  come(3);
  EXPECT_FALSE(open[4]);
  for (int i = 0; i < 100; ++i) come(3);
  EXPECT_TRUE(open[1] && open[2] && open[9]);
  EXPECT_EQ(count(), 8u);
}

TEST_F(GreeterTest, AMemberFindsRoomHoweverManyStrangersWait) {
  for (int i = 0; i < 1000; ++i) come(3);
  says_hello(come(7));
  ASSERT_EQ(taken.size(), 1u);
  says_hello(come(3));  // also from where the strangers come from
  EXPECT_EQ(taken.size(), 2u);
}

// As a process of the first version says it: that one reads refusals, and nothing else of this side's.
TEST_F(GreeterTest, APeerOfVersionOneIsTurnedAwayAndToldBothVersions) {
  QuietLane* const lane = come(1);
  says_hello(lane, {.version_min = 1, .version_max = 1, .purpose = wire::kHelloEndpoint});
  EXPECT_TRUE(taken.empty());
  EXPECT_EQ(lane->told_header.version, 1);
  EXPECT_EQ(wire::validate(lane->told_header), nullptr);
  const std::string why = refusal_text(lane->told_header, lane->told);
  EXPECT_NE(why.find("speaks protocol version " + std::to_string(wire::kVersion) + ", this side 1..1"),
            std::string::npos)
      << why;
  greeter.sweep();
  EXPECT_EQ(count(), 0u);
  says_hello(come(1), {.version_min = 1, .version_max = wire::kVersion, .purpose = wire::kHelloEndpoint});
  EXPECT_EQ(taken.size(), 1u) << "it speaks this side's version, too";
}

TEST_F(GreeterTest, WhoeverSaysNothingGoesAfterAWhile) {
  come(1, 1_s);
  come(2, 4_s);
  greeter.set_time(Nanos{6'000'000'001});
  greeter.sweep();
  EXPECT_FALSE(open[1]);
  EXPECT_TRUE(open[2]);
}

}  // namespace
}  // namespace canarynet
