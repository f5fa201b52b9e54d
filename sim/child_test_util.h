// sim/child_test_util.h -- figures that a process of its own finds: its memory is fresh, and lies elsewhere each time.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace canarynet {

// What figure() returns in a child, which ends then. For processes of one thread. 0 and a failure: it told nothing.
template <typename Figure>
double in_a_child(Figure figure) {
  int ends[2];
  if (::pipe(ends) != 0) {
    ADD_FAILURE() << "no pipe";
    return 0;
  }
  const pid_t child = ::fork();
  if (child == 0) {
    const double found = figure();
    const bool told = ::write(ends[1], &found, sizeof found) == sizeof found;
    ::_exit(told && !::testing::Test::HasFailure() ? 0 : 1);
  }
  ::close(ends[1]);
  double found = 0;
  EXPECT_EQ(::read(ends[0], &found, sizeof found), static_cast<ssize_t>(sizeof found));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << "the child failed";
  return found;
}

}  // namespace canarynet
