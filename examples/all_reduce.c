/* all_reduce.c -- the smallest use of libcanarynet: every rank puts in its rank + 1, every rank gets the sum. C99.
 *
 *   canary-run -n 4 -- all_reduce
 */
#include <stdio.h>

#include "canarynet/canarynet.h"

enum { kCount = 1000 };

static int failed(const char* call) {
  canary_error error = {0};
  error.struct_size = sizeof error;
  if (canary_last_error(&error) != CANARY_OK || error.message == NULL) error.message = "no details";
  fprintf(stderr, "%s: %s\n", call, error.message);
  return 1;
}

int main(void) {
  canary_context* context = NULL;
  static float values[kCount];

  /* NULL: rank, world size and where to join come from the environment, as canary-run sets it. */
  if (canary_init(NULL, &context) != CANARY_OK) return failed("canary_init");
  const int rank = canary_rank(context), ranks = canary_world_size(context);

  for (int i = 0; i < kCount; i++) values[i] = (float)(rank + 1);
  /* In place, and blocking since the last argument is NULL. */
  if (canary_all_reduce(canary_world(context), values, values, kCount, CANARY_F32, CANARY_SUM, NULL) != CANARY_OK) {
    return failed("canary_all_reduce");
  }

  const float expected = (float)(ranks * (ranks + 1) / 2);
  for (int i = 0; i < kCount; i++) {
    if (values[i] != expected) {
      fprintf(stderr, "rank %d: element %d is %g instead of %g\n", rank, i, (double)values[i], (double)expected);
      return 1;
    }
  }
  if (rank == 0) printf("%d ranks: each of %d elements is %g\n", ranks, kCount, (double)expected);
  if (canary_finalize(context) != CANARY_OK) return failed("canary_finalize");
  return 0;
}
