// Training in virtual time: that it learns, that it repeats bit by bit, that exchanges cost what the profile says, and
// that stragglers hold up those policies that wait for them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/sim/options.h"
#include "tools/sim/train/report.h"

namespace canarynet::sim {
namespace {

// Under sanitizers, which see the same code with fewer policies.
bool quick() { return std::getenv("CANARY_TEST_QUICK") != nullptr; }

const char* const kImages = "/usr/share/datasets/fashion-mnist";

// The command line's way, so that tests read as users write.
TrainOptions options_of(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"train", "--batch", "16", "--rate", "0.05"});
  if (std::find(arguments.begin(), arguments.end(), "--hidden") == arguments.end()) {
    arguments.insert(arguments.end(), {"--hidden", "16"});
  }
  const ParsedOptions parsed = parse_sim_options(arguments);
  EXPECT_EQ(parsed.exit_status, -1) << parsed.text;
  return parsed.options.train;
}

// The message of a refused command line.
std::string refusal(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "train");
  const ParsedOptions parsed = parse_sim_options(arguments);
  EXPECT_EQ(parsed.exit_status, 2) << parsed.text;
  return parsed.text;
}

class TrainingInVirtualTime : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kImages)) GTEST_SKIP() << "package dataset-fashion-mnist is not installed";
  }
  static Training train(const std::vector<std::string>& arguments) {
    TrainOptions options = options_of(arguments);
    options.test_images = options.final_images = 1000;
    static const Images images = Images::load(options.learner.directory);
    Learner learner(options.learner, images);
    auto trained = Trainer(options, learner).run();
    EXPECT_TRUE(trained.ok()) << trained.status().to_string();
    return trained.ok() ? trained.value() : Training{};
  }
};

std::vector<std::string> with(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(Profile, ItsBytesAndTimesAreThePublishedOnes) {
  const Profile vgg = find_profile("vgg19-v100").value();
  EXPECT_NEAR(vgg.bytes() / (1 << 20), 532.6, 0.5) << "Canary's paper: 532.61 MB";
  EXPECT_NEAR(vgg.seconds(), 0.16, 1e-9);
  EXPECT_NEAR(find_profile("vgg16-1080ti").value().bytes(), 9.23e6, 100);
  EXPECT_NEAR(find_profile("resnet18-1080ti").value().seconds(), 0.03, 1e-9);
  EXPECT_NEAR(find_profile("resnet50-k80").value().bytes() / 4, 25.557e6, 1e3);
}

TEST(Profile, TheBackwardPassMakesTheLastLayersGradientFirst) {
  const Profile vgg = find_profile("vgg19-v100").value();
  // The three fully connected layers hold 88 % of the bytes and take 1 % of the time.
  EXPECT_LT(vgg.ready(0.8) - vgg.pass.forward_seconds, 0.02 * vgg.seconds());
  EXPECT_NEAR(vgg.ready(1), vgg.seconds(), 1e-9);
  EXPECT_NEAR(vgg.ready(0), vgg.seconds() / 3, 1e-9) << "nothing before the forward pass has ended";
}

TEST(Slices, CoverAGradientFromItsEnd) {
  const auto slices = slices_of(103, 10);
  std::size_t end = 103;
  for (const Slice& slice : slices) {
    EXPECT_EQ(slice.first + slice.size, end);
    EXPECT_NEAR(static_cast<double>(slice.size), 10.3, 1);
    end = slice.first;
  }
  EXPECT_EQ(end, 0u);
}

TEST(TrainOptions, WrongArgumentsAreNamed) {
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(refusal({"--workers", "9", "--sync", "sps"}), "--sync sps: there is no policy \"sps\"");
  has(refusal({"--workers", "0", "--sync", "bsp"}), "--workers 0: takes a whole number from 1 to 256");
  has(refusal({"--workers", "9", "--sync", "bsp", "--topology", "bcube:3,3"}),
      "bcube:3,3 has 27 hosts, and 9 workers at 1 per host are 9");
  has(refusal({"--workers", "9", "--sync", "bsp", "--topology", "torus"}), "--topology torus: takes flat, flat:NICS");
  has(refusal({"--workers", "9", "--sync", "bsp", "--topology", "flat:9"}), "--topology flat:9: takes flat");
  has(refusal({"--workers", "9", "--sync", "bsp", "--profile", "vgg20"}), "there is no profile \"vgg20\": vgg19-v100");
  has(refusal({"--workers", "9", "--sync", "bsp", "--slow", "9:5x"}), "--slow 9:5x: takes WORKER:5x");
  has(refusal({"--workers", "9", "--sync", "bsp", "--slow", "3:0x"}), "--slow 3:0x: takes WORKER:5x");
  has(refusal({"--workers", "9", "--sync", "bsp", "--lossy", "0"}), "--lossy 0: takes NIC:10%");
  has(refusal({"--workers", "9", "--sync", "bsp", "--lossy", "0:60%"}), "--lossy 0:60%: takes NIC:10%");
  has(refusal({"--workers", "9", "--sync", "bsp", "--lossy", "1:10%"}), "there are 9 hosts, from 0, with 1 NICs");
  has(refusal({"--workers", "9", "--sync", "bsp", "--lossy", "9.0:10%"}), "there are 9 hosts, from 0, with 1 NICs");
  has(refusal({"--workers", "9", "--sync", "bsp", "--target", "85"}), "--target 85: takes a share from 0 to 1");
  has(refusal({"--workers", "9", "--sync", "bsp", "--workers-per-host", "4"}), "9 workers do not fill hosts of 4");
  has(refusal({"--workers", "9", "--sync", "bsp", "--data", "sorted"}), "--data sorted: takes iid or by-class");
  has(refusal({"--workers", "9", "--sync", "bsp", "--convolutions", "8,8,8,8"}), "--convolutions 8,8,8,8: takes up to");
  has(refusal({"--workers", "9", "--sync", "canary:s=18,p=6", "--colayers", "4"}), "p is more than the 4 colayers");
  has(refusal({"--workers", "9", "--sync", "bsp", "--codec", "zip"}), "--codec zip: ");
  has(refusal({"--workers", "9", "--sync", "bsp", "--codec", "svd:2"}), "is for matrices");
  has(refusal({"--workers", "9", "--sync", "bsp", "--codec", "artopk:star:0.01"}), "goes with bml");
  has(refusal({"--workers", "9", "--sync", "ripples:smart", "--codec", "int8"}),
      "policy ripples:smart: --codec goes with policies that");
  has(refusal({"--workers", "9", "--sync", "bsp", "--iteration", "0s"}), "--iteration 0s: takes a time");
  has(refusal({"--workers", "9", "--sync", "ripples:static", "--workers-per-host", "9", "--topology", "bcube:3,2"}),
      "bcube:3,2 has 9 hosts");
}

TEST(TrainOptions, APolicyWhoseExchangeCannotRunThereIsRefusedByName) {
  for (const char* policy : {"ripples:smart", "ripples:static", "ad-psgd", "ps", "ps-async"}) {
    const std::string why = refusal({"--workers", "9", "--sync", policy, "--topology", "bcube:3,2"});
    EXPECT_NE(why.find("policy " + std::string(policy) + ": "), std::string::npos) << why;
    EXPECT_NE(why.find("runs on flat and mesh"), std::string::npos) << why;
  }
}

TEST(TrainOptions, LossyNicsAreReadForAllHostsAndForOne) {
  const auto lossy = parse_lossy("1:10%,3.0:0.5%").value();
  ASSERT_EQ(lossy.size(), 2u);
  EXPECT_EQ(lossy[0].host, -1);
  EXPECT_EQ(lossy[0].nic, 1);
  EXPECT_DOUBLE_EQ(lossy[0].loss, 0.1);
  EXPECT_EQ(lossy[1].host, 3);
  EXPECT_EQ(lossy[1].nic, 0);
  EXPECT_DOUBLE_EQ(lossy[1].loss, 0.005);
}

TEST(TrainOptions, SlowWorkersAreReadInBothWays) {
  const auto slow = parse_slow("3:5x,0:+2.5x,2:10x@5%", 9).value();
  ASSERT_EQ(slow.size(), 3u);
  EXPECT_EQ(slow[0].worker, 3);
  EXPECT_EQ(slow[0].factor, 5);
  EXPECT_EQ(slow[0].added, 0);
  EXPECT_EQ(slow[1].worker, 0);
  EXPECT_EQ(slow[1].factor, 1);
  EXPECT_EQ(slow[1].added, 2.5);
  EXPECT_EQ(slow[1].share, 1);
  EXPECT_EQ(slow[2].worker, 2);
  EXPECT_EQ(slow[2].factor, 10);
  EXPECT_DOUBLE_EQ(slow[2].share, 0.05);
  for (const char* const wrong : {"2:10x@", "2:10x@5", "2:10x@0%", "2:10x@101%", "2:10@5%", "2:x", "2:+x", "2:0x"})
    EXPECT_FALSE(parse_slow(wrong, 9).ok()) << wrong;
}

TEST_F(TrainingInVirtualTime, ReachesTheTargetAndTellsWhatItTook) {
  const std::vector<std::string> arguments = {"--workers", "4", "--sync", "bsp", "--target", "0.75", "--data", "iid"};
  const Training training = train(arguments);
  ASSERT_TRUE(training.target.has_value());
  EXPECT_GE(training.target->accuracy, 0.75);
  EXPECT_GT(training.end.accuracy, 0.73);
  EXPECT_LT(training.curve.front().accuracy, 0.3) << "nothing is known at the start";
  const TrainOptions options = options_of(arguments);
  const auto json = nlohmann::json::parse(json_of(options, training, Trainer::assumption(options, 12730)));
  EXPECT_EQ(json["seconds_to_target"].get<double>(), training.target->seconds);
  EXPECT_EQ(json["steps_to_target"].get<double>(), training.target->steps);
  EXPECT_EQ(json["bytes_to_target"].get<double>(), training.target->bytes);
  EXPECT_EQ(json["curve"].size(), training.curve.size());
  EXPECT_NE(json["assumption"].get<std::string>().find("vgg19-v100"), std::string::npos);
  EXPECT_NE(plot_of(options, training).find("<polyline"), std::string::npos);
}

TEST_F(TrainingInVirtualTime, IsTheSameBitByBitForEqualSeeds) {
  for (const char* policy :
       {"bsp", "ripples:random", "canary:s=4,p=3", "ps-async", "diloco:h=4,quorum=75", "diloco:h=4,overlap=2"}) {
    const std::vector<std::string> arguments = {"--workers", "4",        "--sync", policy,   "--steps",
                                                "12",        "--jitter", "0.2",    "--slow", "2:3x"};
    const Training one = train(with(arguments, {"--seed", "7"}));
    const Training same = train(with(arguments, {"--seed", "7"}));
    const Training other = train(with(arguments, {"--seed", "8"}));
    EXPECT_EQ(one.hash, same.hash) << policy;
    EXPECT_EQ(one.iterations, same.iterations) << policy;
    EXPECT_EQ(one.end.seconds, same.end.seconds) << policy;
    EXPECT_NE(one.hash, other.hash) << policy;
  }
}

// 2(n-1)/n of 558 MB over 10 Gbit/s, which no computation hides, and a third of it is free of any exchange.
TEST_F(TrainingInVirtualTime, AnExchangeTakesAsLongAsTheProfilesWould) {
  const Training training = train({"--workers", "4", "--sync", "bsp", "--steps", "10", "--hidden", "128"});
  // The last iteration ends the training, so there is one exchange less.
  const double exchange = 2 * 0.75 * 558.4e6 * 8 / 1e10, took = (training.end.seconds - 0.16) / 9;
  EXPECT_GT(took, exchange);
  EXPECT_LT(took, 1.15 * exchange + 0.16 / 3);
  const double bytes = training.end.bytes / 9;
  EXPECT_GT(bytes, 4 * 2 * 0.75 * 558.4e6);
  EXPECT_LT(bytes, 1.15 * 4 * 2 * 0.75 * 558.4e6);
  // With nothing to exchange over, only the computation is left.
  const Training alone = train({"--workers", "1", "--sync", "bsp", "--steps", "10"});
  EXPECT_NEAR(alone.end.seconds, 10 * 0.16, 0.001);
  EXPECT_EQ(alone.end.bytes, 0);
}

TEST_F(TrainingInVirtualTime, AConvolutionalNetworkLearnsAsWell) {
  const Training training =
      train({"--workers", "4", "--sync", "bsp", "--steps", "40", "--convolutions", "4,8", "--target", "1"});
  EXPECT_GT(training.end.accuracy, 0.5);
  EXPECT_EQ(training.end.steps, 40);
}

// All gradients of all workers, each in the iteration where it belongs: what BSP is, by two different ways.
TEST_F(TrainingInVirtualTime, ASessionWithoutAnyLeadLearnsWhatAnAllReduceDoes) {
  const std::vector<std::string> arguments = {"--workers", "9", "--topology", "bcube:3,2", "--steps", "20",
                                              "--target",  "1", "--jitter",   "0.3",       "--slow",  "5:2x"};
  const Training by_all_reduce = train(with(arguments, {"--sync", "bml"}));
  const Training by_session = train(with(arguments, {"--sync", "ssp:0"}));
  ASSERT_EQ(by_all_reduce.curve.size(), by_session.curve.size());
  for (std::size_t i = 0; i < by_session.curve.size(); ++i)
    EXPECT_NEAR(by_session.curve[i].accuracy, by_all_reduce.curve[i].accuracy, 0.002);
  EXPECT_GT(by_session.end.accuracy, 0.5);
  EXPECT_EQ(by_session.gradients, 9);
  EXPECT_EQ(by_session.dropped, 0u);
}

// With one step between exchanges and no outer momentum a mean of parameters is a step along the mean gradient.
TEST_F(TrainingInVirtualTime, MeansOfParametersAfterEveryStepLearnWhatAMeanOfGradientsDoes) {
  const auto run = [&](const char* policy) {
    return train({"--workers", "3", "--steps", "30", "--target", "1", "--sync", policy});
  };
  const Training gradients = run("bsp");
  EXPECT_LT(gradients.divergence, 1e-6);
  for (const char* policy : {"bml", "ps", "diloco:h=1,rate=1,momentum=0"}) {
    const Training means = run(policy);
    ASSERT_EQ(means.curve.size(), gradients.curve.size()) << policy;
    for (std::size_t i = 0; i < means.curve.size(); ++i)
      EXPECT_NEAR(means.curve[i].accuracy, gradients.curve[i].accuracy, 0.004) << policy << ", point " << i;
  }
  // Of three workers everybody is a neighbour; their curve is one local step ahead of what is exchanged.
  EXPECT_NEAR(run("d-psgd").end.accuracy, gradients.end.accuracy, 0.03);
}

// A fast network, so that only the straggler is waited for: iterations of the other workers in the same time.
// Until a quorum knows how late each worker usually is, it waits for all: two to five seconds here.
TEST_F(TrainingInVirtualTime, AStragglerHoldsUpThoseThatWaitForIt) {
  const auto pace = [&](const char* policy) {
    const Training training = train(
        {"--workers", "6", "--sync", policy, "--slow", "5:5x", "--nic", "1000gbit", "--steps", "80", "--target", "1"});
    return static_cast<double>(training.iterations[0]) * 0.16 / training.end.seconds;
  };
  std::vector<const char*> all_wait = {"bsp", "ssp:3"}, none_waits = {"ssp:3,quorum=75", "asp"};
  if (!quick()) {
    all_wait.insert(all_wait.end(), {"bml", "ps", "d-psgd"});
    none_waits.insert(none_waits.end(),
                      {"bsp:quorum=75", "canary:s=18,p=6", "ako:parts=2", "esync", "ripples:smart", "ad-psgd"});
  }
  for (const char* waits : all_wait) EXPECT_LT(pace(waits), 0.3) << waits;
  for (const char* does_not : none_waits) EXPECT_GT(pace(does_not), 0.6) << does_not;
  EXPECT_GT(pace("esync"), 2.5 * pace("bsp"));
}

TEST_F(TrainingInVirtualTime, WithAQuorumAWorkerThatIsSlowNowAndThenIsNotWaitedFor) {
  const auto run = [&](const char* policy) {
    return train({"--workers", "6", "--sync", policy, "--slow", "5:10x@10%", "--nic", "1000gbit", "--steps", "60",
                  "--target", "1"});
  };
  const Training all = run("bsp"), quorate = run("bsp:quorum=75");
  EXPECT_LT(1.5 * quorate.end.seconds, all.end.seconds);
  EXPECT_EQ(quorate.dropped, 0u);
  EXPECT_GT(quorate.gradients, 4.5) << "nearly all gradients of an iteration are in one round";
  EXPECT_GT(quorate.iterations[5], 20);
  EXPECT_GT(quorate.end.accuracy, 0.5);
}

TEST_F(TrainingInVirtualTime, AnOvertimeWorkerDropsItsGradientsAndPulls) {
  const Training training = train({"--workers", "4", "--sync", "canary:s=2,p=10", "--slow", "3:8x", "--nic", "1000gbit",
                                   "--steps", "40", "--target", "1"});
  EXPECT_GT(training.pulls, 0);
  EXPECT_GT(training.dropped, 0u);
  EXPECT_LT(training.divergence, 0.1) << "the newest parameters came with the pull";
  EXPECT_GT(training.end.accuracy, 0.5);
}

TEST_F(TrainingInVirtualTime, ACodecSendsLessAndItsErrorIsNotLost) {
  const auto run = [&](const char* codec) {
    return train({"--workers", "4", "--sync", "bsp", "--steps", "30", "--target", "1", "--codec", codec});
  };
  const Training dense = run("dense"), sketch = run("sketch:8"), coarse = run("sketch:1");
  EXPECT_NEAR(sketch.end.bytes / dense.end.bytes, 0.25, 0.01);
  EXPECT_LT(sketch.end.seconds, 0.5 * dense.end.seconds);
  EXPECT_NEAR(sketch.end.accuracy, dense.end.accuracy, 0.03);
  EXPECT_NE(sketch.end.accuracy, dense.end.accuracy) << "it left something out";
  EXPECT_GT(coarse.end.accuracy, 0.4) << "what two values can't tell comes with the next gradient";
}

// Each by what the engines make of it, in all-reduces and in rounds, whose words of who contributed travel beside it.
TEST_F(TrainingInVirtualTime, AllKindsOfCodecsTravelThroughTheEngines) {
  const auto run = [&](const char* policy, const char* codec) {
    return train(
        {"--workers", "4", "--sync", policy, "--steps", "30", "--target", "1", "--hidden", "64", "--codec", codec});
  };
  struct Codec {
    const char* name;
    double share;  // of dense bytes
  };
  std::vector<const char*> policies = {"bml"};
  if (!quick()) policies.push_back("bsp");
  for (const char* policy : policies) {
    const Training dense = run(policy, "dense");
    for (const Codec& codec : {Codec{"fp16", 0.5}, Codec{"int8", 0.25}, Codec{"onebit", 1.0 / 32}}) {
      const Training coded = run(policy, codec.name);
      EXPECT_GT(coded.end.bytes / dense.end.bytes, codec.share) << policy << " with " << codec.name;
      EXPECT_LT(coded.end.bytes / dense.end.bytes, codec.share + 0.06) << policy << " with " << codec.name;
      EXPECT_NEAR(coded.end.accuracy, dense.end.accuracy, 0.08) << policy << " with " << codec.name;
    }
    // Everybody's values go to everybody: n - 1 times, where dense ones go 2 (n - 1) / n times.
    const Training top = run(policy, "topk:0.1");
    EXPECT_GT(top.end.bytes / dense.end.bytes, 0.1 * 4 / 2) << policy;
    EXPECT_LT(top.end.bytes / dense.end.bytes, 0.2 * 4 / 2) << policy;
    EXPECT_NEAR(top.end.accuracy, dense.end.accuracy, 0.08) << policy;
  }
  const Training dense = run("bml", "dense"), friendly = run("bml", "artopk:star:0.1");
  EXPECT_LT(friendly.end.bytes, 0.4 * dense.end.bytes);
  EXPECT_GT(friendly.end.accuracy, 0.5) << "the values that one rank named are everybody's";
}

// Local steps send one gradient's size per round where BSP sends one per iteration.
TEST_F(TrainingInVirtualTime, LocalStepsSendAsManyTimesLess) {
  const auto bytes_per_step = [&](const char* policy) {
    const Training training = train({"--workers", "4", "--sync", policy, "--steps", "41", "--target", "1"});
    return training.end.bytes / training.end.steps;
  };
  const double all = bytes_per_step("bsp");
  EXPECT_NEAR(bytes_per_step("diloco:h=10") / all, 0.1, 0.015);
  EXPECT_NEAR(bytes_per_step("diloco:h=10,fragments=2") / all, 0.1, 0.015);
}

// Four iterations of 0.16 s, and an exchange that takes about as long as three.
TEST_F(TrainingInVirtualTime, AnExchangeBesideIterationsTakesNoTimeOfTheirs) {
  const auto run = [&](const char* policy) {
    return train({"--workers", "4", "--sync", policy, "--nic", "14gbit", "--steps", "40", "--target", "1"});
  };
  const Training waits = run("diloco:h=4"), some = run("diloco:h=4,overlap=1"), all = run("diloco:h=4,overlap=4");
  EXPECT_GT(waits.end.seconds, 1.6 * 40 * 0.16);
  EXPECT_LT(some.end.seconds, waits.end.seconds - 9 * 0.9 * 0.16);
  EXPECT_LT(all.end.seconds, 1.05 * 40 * 0.16);
  for (const Training& training : {waits, some, all}) EXPECT_GT(training.end.accuracy, 0.55);
}

// The straggler's rounds go on without it; what it has trained then goes with a later one.
TEST_F(TrainingInVirtualTime, ALateWorkerHoldsUpNobodyAndCatchesUp) {
  const auto run = [&](const char* policy) {
    return train({"--workers", "4", "--sync", policy, "--slow", "3:6x", "--jitter", "0.4", "--nic", "1000gbit",
                  "--steps", "100", "--target", "1"});
  };
  const Training waits = run("diloco:h=4"), goes_on = run("diloco:h=4,quorum=75");
  EXPECT_GT(goes_on.computing[0], 1.2 * waits.computing[0]);
  EXPECT_LT(goes_on.divergence, 0.2);
  EXPECT_GT(goes_on.end.accuracy, 0.6);
}

// Of a training this short the accuracy of one seed tells nothing: they differ by ten points.
TEST_F(TrainingInVirtualTime, DeltasMayHaveACodecToo) {
  const int seeds = quick() ? 1 : 4;
  const auto run = [&](const char* policy, const char* codec, int seed) {
    return train({"--workers", "4", "--sync", policy, "--steps", "41", "--target", "1", "--codec", codec, "--seed",
                  std::to_string(seed)});
  };
  for (const char* policy : {"diloco:h=5,fragments=2", "diloco:h=5,fragments=2,overlap=1", "esync"}) {
    double of_dense = 0, of_sketch = 0;
    for (int seed = 1; seed <= seeds; ++seed) {
      const Training dense = run(policy, "dense", seed), sketch = run(policy, "sketch:8", seed);
      const auto bytes = [](const Training& t) { return t.end.bytes / static_cast<double>(t.exchanges); };
      EXPECT_GT(bytes(sketch) / bytes(dense), 0.2) << policy;
      EXPECT_LT(bytes(sketch) / bytes(dense), 0.32)
          << policy << ": tables and heads of a small model beside its values";
      of_dense += dense.end.accuracy / seeds;
      of_sketch += sketch.end.accuracy / seeds;
    }
    // Single seeds differ by ten points.
    if (!quick()) {
      EXPECT_NEAR(of_sketch, of_dense, 0.04) << policy;
    }
    EXPECT_NE(of_sketch, of_dense) << policy << ": it left something out";
  }
}

TEST_F(TrainingInVirtualTime, EveryPolicyRunsAndLearns) {
  for (const char* policy :
       {"ps", "ps-async", "bml", "ako:parts=2", "esync", "esync-nb", "ripples:smart", "ripples:random",
        "ripples:static", "ripples:static-rotating", "ad-psgd", "d-psgd", "diloco:h=5",
        "diloco:h=6,fragments=2,overlap=2", "diloco:h=6,overlap=2,mix=0.5", "ssp:2", "asp"}) {
    const Training training = train({"--workers", "4", "--workers-per-host", "2", "--sync", policy, "--nic", "100gbit",
                                     "--steps", "30", "--target", "1", "--jitter", "0.1"});
    EXPECT_GT(training.end.accuracy, 0.55) << policy;
    EXPECT_GT(training.exchanges, 0) << policy;
  }
}

TEST_F(TrainingInVirtualTime, ShardsByClassAreHarder) {
  const auto accuracy = [&](const char* data) {
    return train({"--workers", "4", "--sync", "diloco:h=10", "--steps", "30", "--target", "1", "--data", data})
        .end.accuracy;
  };
  EXPECT_GT(accuracy("iid"), accuracy("by-class"));
}

}  // namespace
}  // namespace canarynet::sim
