// The C++ header in a job of one rank: types, lengths, operations in flight, errors.
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "canarynet/canarynet.hpp"

namespace {

using canarynet::Context;
using canarynet::Operation;

// Some uses must not compile: elements without a wire type, outputs that can't be written.
static_assert(canarynet::OutputBuffer<std::vector<float>>);
static_assert(canarynet::OutputBuffer<std::span<std::int8_t>>);
static_assert(canarynet::InputBuffer<std::span<const canarynet::bf16>>);
static_assert(!canarynet::OutputBuffer<std::span<const float>>);
static_assert(!canarynet::OutputBuffer<const std::vector<float>>);
static_assert(!canarynet::InputBuffer<std::vector<bool>>);
static_assert(!canarynet::InputBuffer<std::vector<char16_t>>);
static_assert(!canarynet::InputBuffer<std::vector<std::string>>);
static_assert(canarynet::type_of<canarynet::f16> == CANARY_F16 && canarynet::type_of<std::int64_t> == CANARY_I64);
static_assert(sizeof(canarynet::f16) == 2 && sizeof(canarynet::bf16) == 2);

class CppApi : public testing::Test {
 protected:
  Context context_{canarynet::JoinOptions{.rank = 0, .world_size = 1}};
};

TEST_F(CppApi, CollectivesOfOneRankCopy) {
  auto& world = context_.world();
  EXPECT_EQ(context_.rank(), 0);
  EXPECT_EQ(world.size(), 1);
  const std::vector<float> input = {1, 2, 3};
  std::array<float, 3> output{};
  world.all_reduce(input, output);
  EXPECT_EQ(output[2], 3);
  std::vector<float> gathered(3);
  world.all_gather(std::span(input), std::span(gathered));
  EXPECT_EQ(gathered, input);
  std::vector<std::int64_t> numbers = {7, 8};
  world.all_reduce(numbers, CANARY_MAX);
  world.broadcast(numbers, 0);
  EXPECT_EQ(numbers, (std::vector<std::int64_t>{7, 8}));
  std::vector<double> in = {1.5, 2.5}, out(2);
  world.reduce_scatter(in, out, CANARY_AVG);
  EXPECT_EQ(out, in);
  world.reduce(in, out, 0, CANARY_MAX);
  EXPECT_EQ(out, in);
  world.gather(input, gathered, 0);
  EXPECT_EQ(gathered, input);
  world.scatter_async(input, output, 0).wait();
  EXPECT_EQ(output[1], 2);
  world.all_to_all(in, out);
  EXPECT_EQ(out, in);
  const std::array<std::size_t, 1> three = {3}, two = {2};
  std::vector<float> other(3);
  world.all_gather_v(input, other, three);
  EXPECT_EQ(other, input);
  out = {0, 0};
  world.all_to_all_v_async(in, two, out, two).wait();
  EXPECT_EQ(out, in);
  world.barrier();
}

TEST_F(CppApi, MessagesToOneselfMeetTheirReceives) {
  auto& world = context_.world();
  std::vector<float> got(3);
  Operation receive = world.receive_async(got, 0);
  world.send(std::vector<float>{1, 2, 3}, 0);
  receive.wait();
  EXPECT_EQ(got, (std::vector<float>{1, 2, 3}));
  const std::vector<float> more = {4, 5, 6};
  Operation send = world.send_async(more, 0);
  world.receive(std::span(got), 0);
  send.wait();
  EXPECT_EQ(got[2], 6);
}

TEST(CppEndpoint, ConnectionsCarryMessagesAndCloseThemselves) {
  canarynet::Endpoint endpoint({"rails=lo"});
  auto listener = endpoint.listen();
  auto connecting = endpoint.connect(listener.address);
  std::optional<canarynet::Connection> a, b;
  while (!a) a = connecting.test();
  while (!b) b = listener.accept();
  const std::vector<std::int32_t> out = {1, 2, 3};
  std::vector<std::int32_t> in(10);
  auto receive = b->receive(in);
  auto send = a->send(out);
  ASSERT_TRUE(receive && send);
  std::optional<std::size_t> length;
  while (!(length = receive->test())) continue;
  EXPECT_EQ(*length, sizeof(std::int32_t) * out.size());
  EXPECT_EQ(in[2], 3);
  while (!send->test()) continue;
  auto never = b->receive(in);
  a.reset();
  EXPECT_THROW(while (!never->test()) continue, canarynet::Error);
  EXPECT_THROW((void)endpoint.connect({}).test(), canarynet::Error);
}

TEST_F(CppApi, MemoryOfTheLibraryIsZeroedAndEndsOnce) {
  const std::span<float> memory = context_.allocate<float>(1000);
  EXPECT_EQ(memory.size(), 1000u);
  EXPECT_EQ(memory[999], 0);
  memory[0] = 3;
  context_.world().all_reduce(memory);
  EXPECT_EQ(memory[0], 3);
  context_.free(memory);
  EXPECT_THROW(context_.free(memory), canarynet::Error);
  EXPECT_THROW(context_.allocate<double>(SIZE_MAX / 4), canarynet::Error);
}

TEST_F(CppApi, OperationsCompleteOnceAndMove) {
  std::vector<canarynet::bf16> data(5, canarynet::bf16{0x3f80});
  Operation first = context_.world().all_reduce_async(data);
  EXPECT_TRUE(first.pending());
  Operation second = std::move(first);
  EXPECT_FALSE(first.pending());
  first.wait();  // nothing to do
  second.set_deadline(std::chrono::seconds(10));
  while (!second.test()) {
  }
  EXPECT_FALSE(second.pending());
  EXPECT_TRUE(second.test());
  EXPECT_EQ(data[4].bits, 0x3f80);
  { const Operation dropped = context_.world().barrier_async(); }  // the destructor waits
}

TEST_F(CppApi, LengthsThatDoNotFitAreRefused) {
  std::vector<float> three(3), two(2);
  auto& world = context_.world();
  EXPECT_THROW(world.all_reduce(three, two), canarynet::Error);
  EXPECT_THROW(world.reduce_scatter(three, two), canarynet::Error);
  EXPECT_THROW(world.all_gather(three, two), canarynet::Error);
  EXPECT_THROW(world.reduce(three, two, 0), canarynet::Error);
  EXPECT_THROW(world.all_to_all(three, two), canarynet::Error);
  const std::array<std::size_t, 1> counts = {2};
  EXPECT_THROW(world.all_gather_v(three, two, counts), canarynet::Error);
  EXPECT_THROW(world.all_gather_v(two, two, std::span<const std::size_t>()), canarynet::Error);
  EXPECT_THROW(world.all_to_all_v(three, counts, two, counts), canarynet::Error);
  EXPECT_THROW(world.gather(three, two, 0), canarynet::Error);
  EXPECT_THROW(world.scatter(three, two, 0), canarynet::Error);
}

TEST_F(CppApi, ErrorsCarryTheCodeAndASentence) {
  std::vector<float> data(2);
  try {
    context_.world().broadcast(data, 5);
    FAIL() << "a root that is no rank was taken";
  } catch (const canarynet::Error& error) {
    EXPECT_EQ(error.code(), CANARY_INVALID_ARGUMENT);
    EXPECT_STRNE(error.what(), "");
  }
}

TEST_F(CppApi, GroupsMoveAndEnd) {
  const std::array<int, 1> ranks = {0};
  auto group = context_.create_group(ranks);
  auto moved = std::move(group);
  EXPECT_EQ(moved.size(), 1);
  EXPECT_EQ(moved.rank(), 0);
  std::vector<float> data = {4};
  moved.all_reduce(data);
  EXPECT_EQ(data[0], 4);
}

TEST(CppContext, RefusesAWrongSetting) {
  try {
    const Context context({.rank = 0, .world_size = 1, .settings = {"no_such_setting=1"}});
    FAIL() << "an unknown setting was taken";
  } catch (const canarynet::Error& error) {
    EXPECT_EQ(error.code(), CANARY_INVALID_SETTING);
    EXPECT_NE(std::string(error.what()).find("no_such_setting"), std::string::npos) << error.what();
  }
}

}  // namespace
