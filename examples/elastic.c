/* elastic.c -- a job that goes on without the ranks that die, whichever they are, rank 0 included.
 *
 *   canary-run -n 5 --keep-going -- elastic [SECONDS [DEATHS]]
 *
 * All sum in a group. When a rank dies, the sum under way fails on every survivor with CANARY_PEER_DIED and its number;
 * they make a group of those who are left, and repeat the step. Nobody restarts, nobody joins again. What a rank adds
 * is known, so each sum is checked. DEATHS ranks (2), from rank 0 on, end one after another without a word.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "canarynet/canarynet.h"

#define COUNT 5000
#define RANKS_MAX 256

static canary_error last_error(void) {
  canary_error error;
  memset(&error, 0, sizeof error);
  error.struct_size = sizeof error;
  canary_last_error(&error);
  return error;
}

static int failed(const char* what) {
  fprintf(stderr, "elastic: %s: %s\n", what, last_error().message);
  return 1;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Takes the rank that the last error names out of the list. Returns how many are left, or -1 if it names nobody. */
static int without_the_dead(int* ranks, int count) {
  const canary_error error = last_error();
  int left = 0;
  if (error.code != CANARY_PEER_DIED) return -1;
  for (int i = 0; i < count; ++i) {
    if (ranks[i] != error.rank) ranks[left++] = ranks[i];
  }
  return left == count ? -1 : left;
}

int main(int argc, char** argv) {
  static float gradient[COUNT], sum[COUNT];
  const double seconds = argc > 1 ? atof(argv[1]) : 3.0;
  const int deaths = argc > 2 ? atoi(argv[2]) : 2;
  canary_context* context = NULL;
  if (canary_init(NULL, &context) != CANARY_OK) return failed("canary_init");
  const int me = canary_rank(context);
  int count = canary_world_size(context);
  if (count > RANKS_MAX || deaths >= count || seconds <= 0) {
    fprintf(stderr, "elastic: takes SECONDS above 0 and DEATHS below the number of ranks (at most %d)\n", RANKS_MAX);
    return 2;
  }
  const int last = count - 1, survivors = count - deaths;
  int ranks[RANKS_MAX];
  for (int i = 0; i < count; ++i) ranks[i] = i;

  const double began = now();
  const double my_end = me < deaths ? seconds * (me + 1) / (deaths + 1) : 1e9;
  canary_group* group = NULL;
  int steps = 0, groups = 0, over = 0;
  while (!over) {
    if (group == NULL) {
      if (canary_group_create(context, ranks, count, &group) != CANARY_OK) {
        count = without_the_dead(ranks, count);
        if (count < 0) return failed("canary_group_create");
        continue;
      }
      ++groups;
    }
    /* The last rank says when all is over: element 0 is its word. */
    float expected = 0;
    for (int i = 0; i < COUNT; ++i) gradient[i] = (float)(me + 1) * 0.25f;
    for (int i = 0; i < count; ++i) expected += (float)(ranks[i] + 1) * 0.25f;
    gradient[0] = me == last && now() - began > seconds && count == survivors ? 1.0f : 0.0f;
    if (canary_all_reduce(group, gradient, sum, COUNT, CANARY_F32, CANARY_SUM, NULL) != CANARY_OK) {
      count = without_the_dead(ranks, count);
      if (count < 0) return failed("canary_all_reduce");
      canary_group_destroy(group);
      group = NULL;
      continue;
    }
    for (int i = 1; i < COUNT; ++i) {
      if (fabsf(sum[i] - expected) > 1e-4f) {
        fprintf(stderr, "elastic: element %d is %g, not %g\n", i, (double)sum[i], (double)expected);
        return 1;
      }
    }
    ++steps;
    over = sum[0] != 0.0f;
    if (now() - began > my_end) _exit(0); /* as a process that is killed: no word, no canary_finalize */
    usleep(1000);
  }
  if (me == last) printf("%d steps in %d groups, the last one of %d ranks: all sums right\n", steps, groups, count);
  return canary_finalize(context) == CANARY_OK ? 0 : failed("canary_finalize");
}
