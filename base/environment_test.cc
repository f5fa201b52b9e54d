#include "base/environment.h"

#include <gtest/gtest.h>

namespace canarynet {
namespace {

std::vector<std::string> told_of(std::vector<const char*> variables) {
  variables.push_back(nullptr);
  return strange_variables(variables.data());
}

TEST(StrangeVariables, AMisspeltOneIsToldWithTheNearestName) {
  const struct {
    const char *set, *meant;
  } cases[] = {{"CANARY_PEICE_BYTES=64KiB", "CANARY_PIECE_BYTES"},
               {"CANARY_SILENCE_LIMT=1s", "CANARY_SILENCE_LIMIT"},
               {"CANARY_INSECUR=1", "CANARY_INSECURE"},
               {"CANARY_TRANSPORT=tcp", "CANARY_TRANSPORTS"},
               {"CANARY_WORLDSIZE=4", "CANARY_WORLD_SIZE"},
               {"CANARY_RNAK=1", "CANARY_RANK"},
               {"CANARY_LOGS=debug", "CANARY_LOG"},
               {"CANARY_HEARTBEAT_INTERVALL=1s", "CANARY_HEARTBEAT_INTERVAL"}};
  for (const auto& c : cases) {
    const auto told = told_of({"PATH=/bin", c.set, "HOME=/"});
    const std::string name = std::string(c.set).substr(0, std::string(c.set).find('='));
    ASSERT_EQ(told.size(), 1u) << c.set;
    EXPECT_EQ(told[0], name + " is no setting of Canary and is ignored: is " + c.meant + " meant?");
  }
}

TEST(StrangeVariables, OneThatIsFarFromAllIsToldWithoutAGuess) {
  for (const char* set : {"CANARY_QUUX_ZZZZ=1", "CANARY_=", "CANARY_Z=1"}) {
    const auto told = told_of({set});
    ASSERT_EQ(told.size(), 1u) << set;
    EXPECT_NE(told[0].find("docs/settings.md lists them all"), std::string::npos) << told[0];
  }
  const std::string endless = "CANARY_" + std::string(100'000, 'A') + "=1";
  EXPECT_EQ(told_of({endless.c_str()}).size(), 1u);
}

TEST(StrangeVariables, WhatCanaryReadsAndWhatIsNotItsOwnAreNotTold) {
  EXPECT_TRUE(told_of({"CANARY_PIECE_BYTES=1", "CANARY_RANK=0", "CANARY_LOG=info", "CANARY_KERNELS=scalar",
                       "CANARY_RUN_STATE=/x", "CANARY_LOCAL_RANK=0", "CANARY_LOCAL_SIZE=1", "CANARY_TEST_QUICK=1",
                       "CANARYNET_X=1", "MY_CANARY_RNAK=1", "NCCL_DEBUG=INFO", "CANARY"})
                  .empty());
  EXPECT_TRUE(strange_variables(nullptr).empty());
}

}  // namespace
}  // namespace canarynet
