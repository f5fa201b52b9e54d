// canary_op_options: every call that takes them reads them, wrong ones are refused by name, deadlines and priorities
// reach the engine. sim/priority_test.cc tests what priorities do to time.
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <thread>
#include <utility>

#include "canarynet/canarynet.hpp"
#include "embed/connections_test_util.h"

namespace canarynet::test {
namespace {

canary_op_options options_with(std::uint32_t priority, std::uint64_t deadline = 0) {
  canary_op_options o = CANARY_OP_OPTIONS_INIT;
  o.priority = priority;
  o.deadline = deadline;
  return o;
}

// Options that a user may get wrong, each with a part of the message about it.
std::vector<std::pair<canary_op_options, std::string>> wrong_options() {
  std::vector<std::pair<canary_op_options, std::string>> all;
  const auto add = [&](const char* says, const std::function<void(canary_op_options*)>& spoil) {
    canary_op_options o = CANARY_OP_OPTIONS_INIT;
    spoil(&o);
    all.emplace_back(o, says);
  };
  add("struct_size is 0, expected 48 (use CANARY_OP_OPTIONS_INIT)", [](auto* o) { o->struct_size = 0; });
  add("struct_size is 24,", [](auto* o) { o->struct_size = 24; });
  add("struct_size is 44,", [](auto* o) { o->struct_size = 44; });
  add("struct_size is 56,", [](auto* o) { o->struct_size = 56; });
  add("priority is 2: takes CANARY_PRIORITY_NORMAL (0) or CANARY_PRIORITY_URGENT (1)",
      [](auto* o) { o->priority = 2; });
  add("priority is 4294967295", [](auto* o) { o->priority = 0xffffffff; });
  add("tensor is 5 without a codec", [](auto* o) { o->tensor = 5; });
  add("rows is 6 without a codec", [](auto* o) { o->rows = 6; });
  add("momentum is 0.500000 without a tensor", [](auto* o) { o->momentum = 0.5F; });
  add("momentum is 1.000000: takes 0 (none) to below 1", [](auto* o) { o->momentum = 1; });
  add("momentum is -0.100000: takes", [](auto* o) { o->momentum = -0.1F; });
  add("reserved is 7, expected 0", [](auto* o) { o->reserved = 7; });
  add("momentum is nan: takes", [](auto* o) { o->momentum = NAN; });
  return all;
}

// Each operation on a group, small and right but for its options.
using Call = std::function<canary_status(canary_group*, const canary_op_options*, canary_op**)>;
std::vector<std::pair<std::string, Call>> calls() {
  static float in[16], out[16];
  static const std::size_t one[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  return {
      {"all_reduce",
       [](auto g, auto o, auto op) { return canary_all_reduce_with(g, in, out, 4, CANARY_F32, CANARY_SUM, o, op); }},
      {"reduce_scatter",
       [](auto g, auto o, auto op) {
         return canary_reduce_scatter_with(g, in, out, 1, CANARY_F32, CANARY_SUM, o, op);
       }},
      {"all_gather", [](auto g, auto o, auto op) { return canary_all_gather_with(g, in, out, 1, CANARY_F32, o, op); }},
      {"all_gather_v",
       [](auto g, auto o, auto op) { return canary_all_gather_v_with(g, in, out, one, CANARY_F32, o, op); }},
      {"all_to_all", [](auto g, auto o, auto op) { return canary_all_to_all_with(g, in, out, 1, CANARY_F32, o, op); }},
      {"all_to_all_v",
       [](auto g, auto o, auto op) {
         return canary_all_to_all_v_with(g, in, one, nullptr, out, one, nullptr, CANARY_F32, o, op);
       }},
      {"broadcast", [](auto g, auto o, auto op) { return canary_broadcast_with(g, in, in, 4, CANARY_F32, 0, o, op); }},
      {"reduce",
       [](auto g, auto o, auto op) { return canary_reduce_with(g, in, out, 4, CANARY_F32, CANARY_SUM, 0, o, op); }},
      {"gather", [](auto g, auto o, auto op) { return canary_gather_with(g, in, out, 1, CANARY_F32, 0, o, op); }},
      {"scatter", [](auto g, auto o, auto op) { return canary_scatter_with(g, in, out, 1, CANARY_F32, 0, o, op); }},
      {"barrier", [](auto g, auto o, auto op) { return canary_barrier_with(g, o, op); }},
      {"send", [](auto g, auto o, auto op) { return canary_send_with(g, in, 1, CANARY_F32, 0, o, op); }},
      {"recv", [](auto g, auto o, auto op) { return canary_recv_with(g, out, 1, CANARY_F32, 0, o, op); }},
  };
}

TEST(OpOptions, WrongOnesAreRefusedByEveryOperationAndNamed) {
  Job job(1);
  ASSERT_TRUE(job.joined());
  for (const auto& [name, call] : calls()) {
    for (const auto& [options, says] : wrong_options()) {
      canary_op* op = nullptr;
      EXPECT_EQ(call(job.world(0), &options, &op), CANARY_INVALID_ARGUMENT) << name << ", " << says;
      EXPECT_EQ(op, nullptr) << name;
      const std::string text = last_error().message;
      std::string wanted = name;
      wanted.append(": canary_op_options.").append(says);
      EXPECT_NE(text.find(wanted), std::string::npos) << text;
    }
  }
  // Nothing was done, so all ranks are still in step: the first operation is the first.
  const canary_op_options urgent = options_with(CANARY_PRIORITY_URGENT);
  float v = 3;
  EXPECT_EQ(canary_all_reduce_with(job.world(0), &v, &v, 1, CANARY_F32, CANARY_SUM, &urgent, nullptr), CANARY_OK);
}

TEST(OpOptions, OnlyAnAllReduceOfF32SumsTakesACodec) {
  Job job(1);
  ASSERT_TRUE(job.joined());
  canary_op_options options = CANARY_OP_OPTIONS_INIT;
  options.codec = codec("int8");
  for (const auto& [name, call] : calls()) {
    if (name == "all_reduce") continue;
    EXPECT_EQ(call(job.world(0), &options, nullptr), CANARY_INVALID_ARGUMENT) << name;
    const std::string text = last_error().message;
    EXPECT_NE(text.find(name + ": canary_op_options.codec is 3: only all_reduce takes one"), std::string::npos) << text;
  }
  const auto refused = [&](canary_type type, canary_redop redop, std::uint32_t number) {
    options.codec = number;
    double in[4] = {}, out[4] = {};
    EXPECT_EQ(canary_all_reduce_with(job.world(0), in, out, 4, type, redop, &options, nullptr),
              CANARY_INVALID_ARGUMENT);
    return std::string(last_error().message);
  };
  const auto says = [](const std::string& text, const char* what) {
    EXPECT_NE(text.find(what), std::string::npos) << text;
  };
  says(refused(CANARY_F64, CANARY_SUM, 3), "all_reduce: a codec takes f32, not f64");
  says(refused(CANARY_F32, CANARY_MAX, 3), "all_reduce: a codec takes sum and avg, not max");
  says(refused(CANARY_F32, CANARY_SUM, 4), "all_reduce: 4 is the number of no codec (codec sketch: bits = 0");
  says(refused(CANARY_F32, CANARY_SUM, 14), "all_reduce: 14 is the number of no codec");
  says(refused(CANARY_F32, CANARY_SUM, 3 | 1 << 10), "all_reduce: 1027 is the number of no codec");
  options.tensor = 1;
  options.momentum = 0.5F;
  for (const std::string text : {"int8", "sketch:8", "onebit", "bf16", "terngrad", "auto:0.01", "topk:0.01,auto"}) {
    const std::string wanted =
        "all_reduce: momentum is for codecs that leave out whole elements (artopk, agtopk, "
        "topk, lwtopk, mstopk, randomk), not for " +
        text;
    says(refused(CANARY_F32, CANARY_SUM, codec(text.c_str())), wanted.c_str());
  }
  std::uint32_t number = 77;
  EXPECT_EQ(canary_codec("power:4,seed=3", &number), CANARY_INVALID_ARGUMENT);
  says(last_error().message, "canary_codec: codec power:4,seed=3 has no number: there is no room for its seed");
  EXPECT_EQ(canary_codec("power:4,auto", &number), CANARY_INVALID_ARGUMENT);
  says(last_error().message, "it needs the shape of a matrix");
  EXPECT_EQ(canary_codec("zip", &number), CANARY_INVALID_ARGUMENT);
  EXPECT_EQ(number, 77u);
}

TEST(OpOptions, ACodecWithFeedbackTravelsAndItsStateIsKept) {
  constexpr int kRanks = 3;
  Job job(kRanks);
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    std::vector<float> values(100'000);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((i * 7919 + r) % 1000) - 500;
    canary_op_options options = CANARY_OP_OPTIONS_INIT;
    options.codec = codec("sketch:4,mean");
    options.tensor = 12;
    ASSERT_EQ(canary_all_reduce_with(job.world(r), values.data(), values.data(), values.size(), CANARY_F32, CANARY_AVG,
                                     &options, nullptr),
              CANARY_OK)
        << last_error().message;
    EXPECT_NEAR(values[0], -499, 100);
    double gain = 0, norm = 0;
    EXPECT_EQ(canary_feedback_gain(job.world(r), 12, &gain, &norm), CANARY_OK) << last_error().message;
    EXPECT_NEAR(gain, 1, 0.05);
    EXPECT_GT(norm, 0);
    std::size_t size = 0;
    ASSERT_EQ(canary_feedback_save(job.world(r), nullptr, &size), CANARY_OK) << last_error().message;
    std::vector<std::byte> saved(size);
    std::size_t room = size - 1;
    EXPECT_EQ(canary_feedback_save(job.world(r), saved.data(), &room), CANARY_LIMIT);
    EXPECT_EQ(room, size);
    EXPECT_EQ(canary_feedback_save(job.world(r), saved.data(), &room), CANARY_OK);
    EXPECT_EQ(canary_feedback_restore(job.world(r), saved.data(), size - 1), CANARY_MISMATCH);
    EXPECT_EQ(canary_feedback_restore(job.world(r), saved.data(), size), CANARY_OK) << last_error().message;
  });
}

TEST(OpOptions, MomentumReachesTheFeedbackAndOlderCallersHaveNone) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    // The largest element travels, the other one stays and gathers momentum: 1, then 1 + 1.5, 2.5 + 1.75.
    const double wanted[2][3] = {{1, 2.5, 4.25}, {1, 2, 3}};
    for (const int old : {0, 1}) {
      canary_op_options options = CANARY_OP_OPTIONS_INIT;
      options.codec = warm_up(codec("artopk:star:0.1"), 0.5, 1, 2);
      EXPECT_EQ(options.codec, codec("artopk:star:0.125")) << "half of the steps are in the second stage";
      options.codec = codec("artopk:star:0.5");
      options.tensor = 1 + static_cast<std::uint64_t>(old);
      options.momentum = 0.5F;
      if (old != 0) options.struct_size = offsetof(canary_op_options, momentum);
      for (const double norm_wanted : wanted[old]) {
        float values[2] = {100, 1};
        ASSERT_EQ(canary_all_reduce_with(job.world(r), values, values, 2, CANARY_F32, CANARY_SUM, &options, nullptr),
                  CANARY_OK)
            << last_error().message;
        EXPECT_EQ(values[0], 200);
        EXPECT_EQ(values[1], 0);
        double norm = 0;
        EXPECT_EQ(canary_feedback_gain(job.world(r), options.tensor, nullptr, &norm), CANARY_OK);
        EXPECT_NEAR(norm, norm_wanted, 1e-6) << (old != 0 ? "of an older caller" : "");
      }
    }
    std::uint32_t now = 77;
    EXPECT_EQ(canary_codec_warm_up(codec("int8"), 0.5, 0, 10, &now), CANARY_INVALID_ARGUMENT);
    EXPECT_NE(std::string(last_error().message).find("canary_codec_warm_up: codec int8 keeps no share"),
              std::string::npos)
        << last_error().message;
    EXPECT_EQ(now, 77u);
    EXPECT_EQ(canary_codec_warm_up(codec("topk:0.1"), 0.5, 0, 10, nullptr), CANARY_INVALID_ARGUMENT);
  });
}

TEST(OpOptions, RowsMakeAMatrixOfTheBufferAndOlderCallersHaveNone) {
  static constexpr std::size_t kRows = 64, kColumns = 48;
  Job job(2);
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    std::vector<float> values(kRows * kColumns);
    const auto element = [](std::size_t i, int of) {
      const std::size_t row = i / kColumns, column = i % kColumns;
      return static_cast<float>((1 + static_cast<std::size_t>(of)) * (1 + row % 7)) *
             static_cast<float>(1 + column % 5) * 0.125F;
    };
    canary_op_options options = CANARY_OP_OPTIONS_INIT;
    options.tensor = 4;
    const auto reduce = [&] {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = element(i, r);
      return canary_all_reduce_with(job.world(r), values.data(), values.data(), values.size(), CANARY_F32, CANARY_SUM,
                                    &options, nullptr);
    };
    const auto told = [](const char* words) {
      return std::string(last_error().message).find(words) != std::string::npos;
    };
    for (const char* text : {"power:2", "power:2+sketch:8", "svd:2"}) {
      options.codec = codec(text);
      options.rows = 0;
      EXPECT_EQ(reduce(), CANARY_INVALID_ARGUMENT);
      EXPECT_TRUE(told("needs the shape of a matrix: give its rows")) << last_error().message;
      options.rows = kRows;
      options.struct_size = offsetof(canary_op_options, rows);
      EXPECT_EQ(reduce(), CANARY_INVALID_ARGUMENT) << "an older caller has no rows";
      options.struct_size = sizeof options;
      options.rows = kRows + 1;
      EXPECT_EQ(reduce(), CANARY_INVALID_ARGUMENT);
      EXPECT_TRUE(told("all_reduce: 3072 elements are no matrix of 65 rows")) << last_error().message;
      options.rows = kRows;
      ASSERT_EQ(reduce(), CANARY_OK) << last_error().message;
      const float slack = std::string(text) == "power:2+sketch:8" ? 2 : 1e-4F;
      for (std::size_t i = 0; i < values.size(); ++i)
        ASSERT_NEAR(values[i], element(i, 0) + element(i, 1), slack) << text << ", element " << i;
    }
    // And by the wrapper, whose options have rows as well.
    options = detail::raw({.codec = codec("power:2"), .tensor = 5, .rows = kRows});
    ASSERT_EQ(reduce(), CANARY_OK) << last_error().message;
    EXPECT_NEAR(values[0], element(0, 0) + element(0, 1), 1e-4F);
  });
}

TEST(OpOptions, HowOftenARankWasRootIsToldAndOrDenseNeedsATensor) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    canary_op_options options = CANARY_OP_OPTIONS_INIT;
    options.codec = codec("artopk:star:0.5,or-dense");
    float values[2] = {100, 1};
    const auto reduce = [&] {
      return canary_all_reduce_with(job.world(r), values, values, 2, CANARY_F32, CANARY_SUM, &options, nullptr);
    };
    const auto told = [](const char* words) {
      return std::string(last_error().message).find(words) != std::string::npos;
    };
    EXPECT_EQ(reduce(), CANARY_INVALID_ARGUMENT);
    EXPECT_TRUE(told("all_reduce: codec artopk:star:0.5,or-dense needs a tensor")) << last_error().message;
    options.tensor = 1;
    for (int i = 0; i < 3; ++i) ASSERT_EQ(reduce(), CANARY_OK) << last_error().message;
    std::uint64_t counts[3] = {9, 9, 9};
    ASSERT_EQ(canary_top_k_roots(job.world(r), counts, 2), CANARY_OK) << last_error().message;
    EXPECT_EQ(counts[0], 2u);
    EXPECT_EQ(counts[1], 1u);
    EXPECT_EQ(canary_top_k_roots(job.world(r), counts, 3), CANARY_INVALID_ARGUMENT);
    EXPECT_TRUE(told("3 counts for a group of 2 ranks")) << last_error().message;
    EXPECT_EQ(canary_top_k_roots(job.world(r), nullptr, 2), CANARY_INVALID_ARGUMENT);
    EXPECT_EQ(canary_top_k_roots(nullptr, counts, 2), CANARY_INVALID_ARGUMENT);
  });
}

TEST(OpOptions, EveryOperationTakesThemAndNull) {
  Job job(1);
  ASSERT_TRUE(job.joined());
  const canary_op_options urgent = options_with(CANARY_PRIORITY_URGENT, 60'000'000'000);
  for (const canary_op_options* options : {static_cast<const canary_op_options*>(nullptr), &urgent}) {
    std::vector<canary_op*> ops;
    for (const auto& [name, call] : calls())
      EXPECT_EQ(call(job.world(0), options, &ops.emplace_back(nullptr)), CANARY_OK) << name << last_error().message;
    for (canary_op* op : ops) EXPECT_EQ(canary_op_wait(op), CANARY_OK) << last_error().message;
  }
}

TEST(OpOptions, UrgentOperationsAreExactBesideOthers) {
  constexpr int kRanks = 3;
  Job job(kRanks);
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    std::vector<float> bulk(1 << 20, static_cast<float>(r + 1)), urgent(50'000, static_cast<float>(10 * r));
    canary_op* op = nullptr;
    ASSERT_EQ(canary_all_reduce(job.world(r), bulk.data(), bulk.data(), bulk.size(), CANARY_F32, CANARY_SUM, &op),
              CANARY_OK);
    const canary_op_options options = options_with(CANARY_PRIORITY_URGENT);
    EXPECT_EQ(canary_all_reduce_with(job.world(r), urgent.data(), urgent.data(), urgent.size(), CANARY_F32, CANARY_SUM,
                                     &options, nullptr),
              CANARY_OK)
        << last_error().message;
    EXPECT_EQ(canary_op_wait(op), CANARY_OK) << last_error().message;
    EXPECT_EQ(urgent, std::vector<float>(urgent.size(), 30));
    EXPECT_EQ(bulk, std::vector<float>(bulk.size(), 6));
  });
}

// As canary_op_set_deadline() after the call, and it holds for calls without a handle as well.
TEST(OpOptions, ADeadlineEndsWhatAnotherRankDoesNotCall) {
  for (const bool sends : {false, true}) {
    Job job(2);
    ASSERT_TRUE(job.joined());
    job.each([&](int r) {
      std::vector<float> v(100'000, 1);
      const canary_op_options far = options_with(CANARY_PRIORITY_NORMAL, UINT64_MAX);
      EXPECT_EQ(
          canary_all_reduce_with(job.world(r), v.data(), v.data(), v.size(), CANARY_F32, CANARY_SUM, &far, nullptr),
          CANARY_OK)
          << "one that never comes: " << last_error().message;
      if (r != 0) return;
      const canary_op_options soon = options_with(CANARY_PRIORITY_NORMAL, 200'000'000);
      const double began = now();
      const canary_status status =
          sends ? canary_send_with(job.world(r), v.data(), v.size(), CANARY_F32, 1, &soon, nullptr)
                : canary_all_reduce_with(job.world(r), v.data(), v.data(), v.size(), CANARY_F32, CANARY_SUM, &soon,
                                         nullptr);
      EXPECT_EQ(status, CANARY_DEADLINE) << last_error().message;
      EXPECT_GE(now() - began, 0.19);
      EXPECT_LT(now() - began, 0.2 + kToldBound);
      EXPECT_NE(last_error().message.find("the caller's deadline"), std::string::npos) << last_error().message;
      // A handle's next use has none.
      EXPECT_EQ(canary_barrier(job.world(r), nullptr), CANARY_DEADLINE) << "the group has ended";
    });
  }
}

TEST(OpOptions, ADeadlineDoesNotStayWithTheHandle) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    std::vector<float> v(1000, 1);
    const canary_op_options options = options_with(CANARY_PRIORITY_URGENT, 300'000'000);
    for (const bool with : {true, false}) {
      if (!with && r == 1) usleep(600'000);
      const canary_op_options* o = with ? &options : nullptr;
      canary_op* op = nullptr;
      const auto started = r == 0 ? canary_recv_with(job.world(0), v.data(), v.size(), CANARY_F32, 1, o, &op)
                                  : canary_send_with(job.world(1), v.data(), v.size(), CANARY_F32, 0, o, &op);
      ASSERT_EQ(started, CANARY_OK) << last_error().message;
      EXPECT_EQ(canary_op_wait(op), CANARY_OK) << last_error().message;
    }
  });
}

TEST(OpOptions, WrongOnesAreRefusedByConnections) {
  TestEndpoint a, b;
  const Ends ends = join_ends(a, b);
  std::uint8_t byte = 0;
  void* const at = &byte;
  const std::size_t size = 1;
  for (const auto& [options, says] : wrong_options()) {
    canary_request* r = nullptr;
    EXPECT_EQ(canary_isend_with(ends.a, &byte, 1, 0, nullptr, &options, &r), CANARY_INVALID_ARGUMENT);
    EXPECT_NE(last_error().message.find("canary_isend: canary_op_options." + says), std::string::npos)
        << last_error().message;
    EXPECT_EQ(canary_irecv_with(ends.b, 1, &at, &size, nullptr, nullptr, &options, &r), CANARY_INVALID_ARGUMENT);
    EXPECT_NE(last_error().message.find("canary_irecv: canary_op_options." + says), std::string::npos)
        << last_error().message;
    EXPECT_EQ(r, nullptr);
  }
}

TEST(OpOptions, ADeadlineOfAMessageGivesItsConnectionUp) {
  TestEndpoint a, b;
  for (const bool sends : {false, true}) {
    const Ends ends = join_ends(a, b);
    std::vector<std::uint8_t> data(1 << 20);
    void* const at = data.data();
    const std::size_t size = data.size();
    const canary_op_options soon = options_with(CANARY_PRIORITY_NORMAL, 200'000'000);
    // The other end waits for something else.
    canary_request* other = sends ? send(ends.b, data.data(), data.size()) : receive(ends.b, data.data(), data.size());
    const double began = now();
    canary_request* r = nullptr;
    ASSERT_EQ(sends ? canary_isend_with(ends.a, data.data(), size, 0, nullptr, &soon, &r)
                    : canary_irecv_with(ends.a, 1, &at, &size, nullptr, nullptr, &soon, &r),
              CANARY_OK);
    EXPECT_EQ(wait(r), CANARY_DEADLINE);
    EXPECT_GE(now() - began, 0.19);
    EXPECT_LT(now() - began, 0.2 + kToldBound);
    const std::string text = last_error().message;
    EXPECT_NE(
        text.find(sends ? "the caller's deadline of send #1 passed after" : "the caller's deadline of receive #1"),
        std::string::npos)
        << text;
    EXPECT_EQ(wait(other), CANARY_ABORTED);
    EXPECT_NE(last_error().message.find("the caller's deadline"), std::string::npos) << last_error().message;
    EXPECT_EQ(canary_close(ends.a), CANARY_OK);
    EXPECT_EQ(canary_close(ends.b), CANARY_OK);
  }
}

// Each message has its place, whatever went first.
TEST(OpOptions, UrgentMessagesOfAConnectionAreExact) {
  TestEndpoint a, b;
  const Ends ends = join_ends(a, b);
  constexpr int kMessages = 12;
  std::vector<std::vector<std::uint8_t>> sent, got;
  std::vector<canary_request*> requests;
  const canary_op_options urgent = options_with(CANARY_PRIORITY_URGENT);
  for (std::size_t i = 0; i < kMessages; ++i) {
    sent.push_back(bytes_of(i, i % 3 == 2 ? 5000 : 700'000));
    got.emplace_back(sent.back().size());
  }
  for (std::size_t i = 0; i < kMessages; ++i) {
    requests.push_back(receive(ends.b, got[i].data(), got[i].size()));
    canary_request* r = nullptr;
    ASSERT_TRUE(poll_until([&] {
      return canary_isend_with(ends.a, sent[i].data(), sent[i].size(), i % 3 == 2 ? 9 : 1, nullptr,
                               i % 3 == 2 ? &urgent : nullptr, &r) == CANARY_OK;
    }));
    requests.push_back(r);
  }
  for (canary_request* r : requests) EXPECT_EQ(wait(r), CANARY_OK) << last_error().message;
  EXPECT_EQ(sent, got);
}

TEST(OpOptions, TheCppWrapperHandsThemOn) {
  const std::string join = join_url(free_port());
  on_threads(2, [&](int r) {
    canarynet::Context context({.join = join, .rank = r, .world_size = 2});
    canarynet::Group& world = context.world();
    std::vector<float> v(1000, 1), whole(2000), part(500);
    const canarynet::OpOptions urgent{.priority = CANARY_PRIORITY_URGENT, .deadline = std::chrono::minutes(1)};
    world.all_reduce(v, CANARY_SUM, urgent);
    EXPECT_EQ(v[999], 2);
    world.all_gather(v, whole, urgent);
    world.reduce_scatter(v, part, CANARY_MAX, urgent);
    world.broadcast(v, 1, urgent);
    world.barrier(urgent);
    auto message = r == 0 ? world.send_async(v, 1, urgent) : world.receive_async(v, 0, urgent);
    message.wait();
    if (r == 0) {
      try {
        world.barrier({.deadline = std::chrono::milliseconds(100)});
        ADD_FAILURE() << "nobody else called it";
      } catch (const canarynet::Error& e) {
        EXPECT_EQ(e.code(), CANARY_DEADLINE) << e.what();
      }
    } else {
      usleep(300'000);
    }
  });
}

// Rank 1 comes late, so a call of rank 0 finds no room among those that wait, and waits itself.
TEST(OpOptions, ADeadlineCountsFromTheCallAlsoWhileThatWaitsForRoom) {
  test::Job job(2);
  ASSERT_TRUE(job.joined());
  std::vector<canary_op*> ops;
  const auto call = [&](std::uint64_t deadline) {
    canary_op_options options = CANARY_OP_OPTIONS_INIT;
    options.deadline = deadline;
    ops.push_back(nullptr);
    ASSERT_EQ(canary_barrier_with(job.world(0), &options, &ops.back()), CANARY_OK);
  };
  const auto answer = [&](int times) {
    for (int i = 0; i < times && canary_barrier(job.world(1), nullptr) == CANARY_OK; ++i) continue;
  };
  const auto results = [&] {
    canary_status last = CANARY_OK;
    for (canary_op* op : ops) last = canary_op_wait(op);
    ops.clear();
    return last;
  };
  // How much room there is: one call more waits.
  std::atomic<int> called{0};
  std::atomic<bool> stop{false};
  std::thread caller([&] {
    for (; !stop; ++called) call(0);
  });
  for (int before = -1; before != called || called < 1024; usleep(300'000)) before = called;
  const int room = called;
  stop = true;
  answer(room + 1);
  caller.join();
  ASSERT_EQ(results(), CANARY_OK);

  for (int i = 0; i < room; ++i) call(0);
  std::thread late([&] {
    usleep(700'000);
    answer(room);
    usleep(150'000);  // half of the deadline
    answer(1);
  });
  call(300'000'000);
  EXPECT_EQ(results(), CANARY_DEADLINE) << test::last_error().message;
  late.join();
}

}  // namespace
}  // namespace canarynet::test
