#include "discovery/launcher.h"

#include <gtest/gtest.h>

#include <map>

namespace canarynet {
namespace {

using Variables = std::map<std::string, std::string>;

Result<Launch> launched(const Variables& variables) {
  return read_launch([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}
Launch good(const Variables& variables) {
  const auto launch = launched(variables);
  EXPECT_TRUE(launch.ok()) << launch.status().text();
  return launch.ok() ? launch.value() : Launch{};
}
void expect_error(const Variables& variables, const std::string& part) {
  const auto launch = launched(variables);
  ASSERT_FALSE(launch.ok());
  EXPECT_NE(launch.status().text().find(part), std::string::npos) << launch.status().text();
}

TEST(Launcher, NothingSetIsNoLauncher) {
  const Launch launch = good({});
  EXPECT_EQ(launch.rank, -1);
  EXPECT_EQ(launch.world_size, 0);
  EXPECT_EQ(launch.join, "");
}

TEST(Launcher, TorchrunsPortIsItsOwnSoTheNextIsTaken) {
  const Launch launch = good({{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}});
  EXPECT_EQ(launch.rank, 3);
  EXPECT_EQ(launch.world_size, 4);
  EXPECT_EQ(launch.join, "tcp://node1:29501");
  EXPECT_EQ(good({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "fd00::1"}, {"MASTER_PORT", "1"}}).join,
            "tcp://[fd00::1]:2");
  EXPECT_EQ(good({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", ""}, {"MASTER_PORT", "1"}}).join, "");
  const Launch none = good({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "65535"}});
  EXPECT_NE(none.no_join.find("MASTER_PORT=65535"), std::string::npos);
}

TEST(Launcher, SlurmsFirstHostAndAPortOfTheJob) {
  const Variables slurm = {{"SLURM_PROCID", "5"},
                           {"SLURM_NTASKS", "8"},
                           {"SLURM_STEP_NODELIST", "gpu[03-07,9]"},
                           {"SLURM_JOB_ID", "1234567"},
                           {"SLURM_STEP_ID", "2"}};
  const Launch launch = good(slurm);
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.launcher, "SLURM");
  EXPECT_EQ(launch.join, "tcp://gpu03:23074");
  Variables other = slurm;
  other["SLURM_STEP_ID"] = "3";
  EXPECT_NE(good(other).join, launch.join) << "two steps of a job run side by side";
}

TEST(Launcher, HostListsOfSlurm) {
  EXPECT_EQ(first_host_of("login"), "login");
  EXPECT_EQ(first_host_of("a,b[1-2]"), "a");
  EXPECT_EQ(first_host_of("b[001-128]-ib,c"), "b001-ib");
  EXPECT_EQ(first_host_of("b[7]"), "b7");
  EXPECT_EQ(first_host_of("b[x-y]"), "");
  EXPECT_EQ(first_host_of("b[1-2"), "");
  EXPECT_EQ(first_host_of("b[1-2]c[3-4]"), "");
}

TEST(Launcher, OpenMpiTellsNoAddressAndItIsSaidWhatToSet) {
  Variables mpi = {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}};
  EXPECT_EQ(good(mpi).join, "");
  EXPECT_NE(good(mpi).no_join.find("CANARY_RENDEZVOUS=host:port"), std::string::npos);
  mpi["CANARY_RENDEZVOUS"] = "10.0.0.1:4000";
  EXPECT_EQ(good(mpi).join, "tcp://10.0.0.1:4000");
  EXPECT_EQ(good(mpi).rank, 1);
  EXPECT_EQ(good({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}).join, "") << "one rank meets nobody";
}

TEST(Launcher, TheInnermostLauncherCounts) {
  Variables all = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_ID", "1"}, {"SLURM_JOB_NODELIST", "n"},
                   {"RANK", "7"},         {"WORLD_SIZE", "16"},  {"MASTER_ADDR", "m"},  {"MASTER_PORT", "5"}};
  EXPECT_EQ(good(all).rank, 7);
  EXPECT_EQ(good(all).join, "tcp://m:6");
  all["CANARY_RENDEZVOUS"] = "tcp://c:1";
  EXPECT_EQ(good(all).rank, 7);
  EXPECT_EQ(good(all).join, "tcp://c:1");
}

TEST(Launcher, WrongValuesAreNamed) {
  expect_error({{"RANK", "x"}, {"WORLD_SIZE", "2"}}, "RANK=\"x\"");
  expect_error({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK=2 and WORLD_SIZE=2");
  expect_error({{"OMPI_COMM_WORLD_RANK", "-1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}, "OMPI_COMM_WORLD_RANK");
  const Launch unreadable =
      good({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_ID", "1"}, {"SLURM_JOB_NODELIST", "n[]"}});
  EXPECT_NE(unreadable.no_join.find("n[]"), std::string::npos) << "rank and size are known all the same";
}

}  // namespace
}  // namespace canarynet
