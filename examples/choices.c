/* choices.c -- watches a job choose its algorithm. All ranks run each all-reduce by the same one, whichever is on
 * trial, and get the same bits; at the end rank 0 prints what ran and why. C99.
 *
 *   canary-run -n 4 --hosts 4 --nics 2 --rate 200mbit,50mbit -- choices [SECONDS [BYTES [ALGORITHMS]]]
 *
 * SECONDS: 3; BYTES of a buffer: 262144; ALGORITHMS: how many different ones must have run, 1. Exit status 1: ranks
 * differ, a sum is wrong, or fewer ran. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "canarynet/canarynet.h"

/* What each rank tells of an operation. Rank 0 says whether it was the last one. */
enum { kName = 32, kKinds = 16 };
typedef struct {
  char algorithm[kName];
  uint64_t bits;
  uint64_t last;
} told;

static int failed(const char* call) {
  canary_error error = {0};
  error.struct_size = sizeof error;
  if (canary_last_error(&error) != CANARY_OK || error.message == NULL) error.message = "no details";
  fprintf(stderr, "%s: %s\n", call, error.message);
  return 1;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Not integers, so that sums in another order are other bits. */
static float value(int rank, uint64_t round, size_t i) {
  return (float)sin((double)(i % 4099) + 0.1 * rank + 0.01 * (double)(round % 1009));
}

static uint64_t bits_of(const float* values, size_t count) {
  uint64_t hash = 1469598103934665603ull;
  for (size_t i = 0; i < count; i++) {
    uint32_t word;
    memcpy(&word, &values[i], sizeof word);
    hash = (hash ^ word) * 1099511628211ull;
  }
  return hash;
}

static int note(char kinds[kKinds][kName], int* known, const char* algorithm) {
  for (int k = 0; k < *known; k++) {
    if (strcmp(kinds[k], algorithm) == 0) return 0;
  }
  if (*known == kKinds) return 0;
  snprintf(kinds[(*known)++], kName, "%s", algorithm);
  return 1;
}

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? atof(argv[1]) : 3;
  const size_t count = (argc > 2 ? (size_t)atol(argv[2]) : 262144) / sizeof(float);
  const int wanted = argc > 3 ? atoi(argv[3]) : 1;
  if (seconds <= 0 || count == 0 || wanted < 1) {
    fprintf(stderr, "usage: choices [SECONDS [BYTES [ALGORITHMS]]]\n");
    return 2;
  }
  canary_context* context = NULL;
  if (canary_init(NULL, &context) != CANARY_OK) return failed("canary_init");
  canary_group* const world = canary_world(context);
  const int rank = canary_rank(context), size = canary_world_size(context);
  float* input = calloc(count, sizeof *input);
  float* sum = calloc(count, sizeof *sum);
  told* all = calloc((size_t)size, sizeof *all);
  int bad = input == NULL || sum == NULL || all == NULL;
  char kinds[kKinds][kName];
  int known = 0;
  uint64_t round = 0;
  const double began = now();
  for (int last = 0; !bad && !last; round++) {
    for (size_t i = 0; i < count; i++) {
      input[i] = value(rank, round, i);
      sum[i] = NAN;
    }
    if (canary_all_reduce(world, input, sum, count, CANARY_F32, CANARY_SUM, NULL) != CANARY_OK) {
      bad = failed("canary_all_reduce");
      break;
    }
    told mine = {{0}, bits_of(sum, count), now() - began >= seconds};
    snprintf(mine.algorithm, sizeof mine.algorithm, "%s", canary_group_algorithm(world));
    if (canary_all_gather(world, &mine, all, sizeof mine, CANARY_U8, NULL) != CANARY_OK) {
      bad = failed("canary_all_gather");
      break;
    }
    last = all[0].last != 0;
    note(kinds, &known, mine.algorithm);
    for (int r = 0; r < size; r++) {
      if (strcmp(all[r].algorithm, mine.algorithm) == 0 && all[r].bits == mine.bits) continue;
      fprintf(stderr, "all-reduce %llu: rank %d ran %s and got %016llx, rank %d ran %s and got %016llx\n",
              (unsigned long long)round, rank, mine.algorithm, (unsigned long long)mine.bits, r, all[r].algorithm,
              (unsigned long long)all[r].bits);
      bad = 1;
    }
    for (size_t i = 0; i < count && !bad; i += 1 + round % 97) {
      double right = 0;
      for (int r = 0; r < size; r++) right += value(r, round, i);
      if (fabs(sum[i] - right) <= 1e-5 * size) continue;
      fprintf(stderr, "all-reduce %llu by %s: element %zu is %g, not %g\n", (unsigned long long)round,
              mine.algorithm, i, (double)sum[i], right);
      bad = 1;
    }
  }
  if (rank == 0 && round != 0) {
    char why[4096];
    if (canary_explain(world, "all_reduce", count * sizeof(float), why, sizeof why) != CANARY_OK)
      bad = failed("canary_explain");
    else
      printf("%llu all-reduces by %d algorithms, the first by %s\n%s\n", (unsigned long long)round, known, kinds[0],
             why);
    if (known < wanted) {
      fprintf(stderr, "%d algorithms ran, not %d\n", known, wanted);
      bad = 1;
    }
  }
  free(input);
  free(sum);
  free(all);
  if (bad) return 1;
  if (canary_finalize(context) != CANARY_OK) return failed("canary_finalize");
  return 0;
}
