// Programs that know only the public header, whose rank 0 ends: the others go on, form groups and get right sums.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "canarynet/canarynet.hpp"
#include "embed/job_test_util.h"

namespace canarynet {
namespace {

using test::last_error;

constexpr std::size_t kCount = 4099;

// What rank r adds in round k: not an integer, and another one everywhere.
float value_of(int rank, int round, std::size_t i) {
  return static_cast<float>(rank + 1) * 0.37F + static_cast<float>(round) * 0.011F + static_cast<float>(i % 17) * 0.5F;
}

std::string wrong_sums(const std::vector<float>& sums, const std::vector<int>& members, int round) {
  for (std::size_t i = 0; i < sums.size(); ++i) {
    double expected = 0;
    for (const int r : members) expected += value_of(r, round, i);
    if (std::abs(sums[i] - expected) > 1e-5 * expected)
      return "element " + std::to_string(i) + ": " + std::to_string(sums[i]) + ", not " + std::to_string(expected);
  }
  return "";
}

// The elastic program of reference: it sums in a group of those who live, and when one of them has died it makes the
// group of the others. It ends well once `until` of them are left.
std::string survive(const std::string& join, int rank, int ranks, std::size_t until) {
  canary_context* context = nullptr;
  if (test::init(join, rank, ranks, {}, &context) != CANARY_OK) return last_error().message;
  std::vector<int> members(static_cast<std::size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  std::vector<float> in(kCount), sums(kCount);
  int formed = 0;
  const auto drop = [&](int dead) { return std::erase(members, dead) == 1; };
  while (members.size() > until) {
    canary_group* group = nullptr;
    if (canary_group_create(context, members.data(), static_cast<int>(members.size()), &group) != CANARY_OK) {
      if (!drop(last_error().rank)) return "no group: " + std::string(last_error().message);
      continue;
    }
    ++formed;
    for (int round = 0;; ++round) {
      for (std::size_t i = 0; i < kCount; ++i) in[i] = value_of(rank, round, i);
      std::fill(sums.begin(), sums.end(), -1.F);
      if (canary_all_reduce(group, in.data(), sums.data(), kCount, CANARY_F32, CANARY_SUM, nullptr) != CANARY_OK) {
        const std::string why = last_error().message;
        if (last_error().code != CANARY_PEER_DIED || !drop(last_error().rank)) return "no sum: " + why;
        break;
      }
      if (std::string wrong = wrong_sums(sums, members, round); !wrong.empty()) return wrong;
      usleep(1000);
    }
    canary_group_destroy(group);
  }
  // The last ones meet once more.
  canary_group* group = nullptr;
  if (canary_group_create(context, members.data(), static_cast<int>(members.size()), &group) != CANARY_OK)
    return "no last group: " + std::string(last_error().message);
  for (std::size_t i = 0; i < kCount; ++i) in[i] = value_of(rank, 0, i);
  if (canary_all_reduce(group, in.data(), sums.data(), kCount, CANARY_F32, CANARY_SUM, nullptr) != CANARY_OK)
    return "no last sum: " + std::string(last_error().message);
  if (std::string wrong = wrong_sums(sums, members, 0); !wrong.empty()) return wrong;
  canary_finalize(context);
  return "good after " + std::to_string(formed);
}

std::vector<std::unique_ptr<test::Process>> start(int ranks, std::size_t until) {
  const std::string join = test::join_url(test::free_port());
  std::vector<std::unique_ptr<test::Process>> out;
  for (int rank = 0; rank < ranks; ++rank) {
    out.push_back(std::make_unique<test::Process>([=] { return survive(join, rank, ranks, until); }));
  }
  usleep(700'000);
  return out;
}

void expect_good(std::vector<std::unique_ptr<test::Process>>& processes, std::size_t from) {
  for (std::size_t r = from; r < processes.size(); ++r) {
    const std::string said = processes[r]->report();
    EXPECT_EQ(said.rfind("good", 0), 0u) << "rank " << r << ": " << said;
  }
}

TEST(Succession, TheOthersFormGroupsWithoutRankZero) {
  auto ranks = start(3, 2);
  ranks[0]->kill();
  expect_good(ranks, 1);
}

TEST(Succession, OneAfterAnotherUntilTwoAreLeft) {
  auto ranks = start(6, 2);
  for (std::size_t r = 0; r < 4; ++r) {
    ranks[r]->kill();
    usleep(400'000);
  }
  expect_good(ranks, 4);
}

// Nobody waits between them: the next one dies while it takes over.
TEST(Succession, TheSuccessorDiesInTheMidstOfIt) {
  for (const useconds_t gap : {0, 3'000, 25'000}) {
    auto ranks = start(5, 3);
    ranks[0]->kill();
    usleep(gap);
    ranks[1]->kill();
    expect_good(ranks, 2);
  }
}

TEST(Succession, ASuccessorThatStandsStillIsWaitedFor) {
  auto ranks = start(4, 3);
  ::kill(ranks[1]->pid(), SIGSTOP);
  ranks[0]->kill();
  usleep(1'500'000);
  ::kill(ranks[1]->pid(), SIGCONT);
  expect_good(ranks, 1);
}

TEST(Succession, RankZeroMayLeaveFirst) {
  const std::string join = test::join_url(test::free_port());
  std::vector<std::unique_ptr<test::Process>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(std::make_unique<test::Process>([=]() -> std::string {
      canary_context* context = nullptr;
      if (test::init(join, rank, 3, {}, &context) != CANARY_OK) return last_error().message;
      float one = 1, sum = 0;
      if (canary_all_reduce(canary_world(context), &one, &sum, 1, CANARY_F32, CANARY_SUM, nullptr) != CANARY_OK)
        return last_error().message;
      for (int k = 0; k < 20 && rank != 0; ++k) {
        const int both[] = {1, 2};
        canary_group* group = nullptr;
        if (canary_group_create(context, both, 2, &group) != CANARY_OK) return last_error().message;
        if (canary_all_reduce(group, &one, &sum, 1, CANARY_F32, CANARY_SUM, nullptr) != CANARY_OK)
          return last_error().message;
        if (sum != 2) return "a wrong sum";
        canary_group_destroy(group);
        usleep(10'000);
      }
      return canary_finalize(context) == CANARY_OK ? "good" : last_error().message;
    }));
  }
  expect_good(ranks, 0);
}

}  // namespace
}  // namespace canarynet
