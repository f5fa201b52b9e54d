/* gossip.c -- partial all-reduces: workers average with a few others at a time, and no group is formed for that. C99.
 *
 *   canary-run -n 4 -- gossip
 *
 * Every rank has a model (here: one value per parameter, its rank) and a batch. In every round the ranks meet in pairs,
 * others each time, and average their models, weighted by their batches. A pair that fails (its other
 * rank has died, say) costs its round only: the rank goes on with its own model. All decide alike who meets whom, from
 * the number of the round; a server could as well.
 */
#include <stdio.h>

#include "canarynet/canarynet.h"

enum { kParameters = 1000, kRounds = 24 };

static int failed(const char* call) {
  canary_error error = {0};
  error.struct_size = sizeof error;
  if (canary_last_error(&error) != CANARY_OK || error.message == NULL) error.message = "no details";
  fprintf(stderr, "%s: %s\n", call, error.message);
  return 1;
}

int main(void) {
  canary_context* context = NULL;
  if (canary_init(NULL, &context) != CANARY_OK) return failed("canary_init");
  const int rank = canary_rank(context), ranks = canary_world_size(context);
  static float model[kParameters];
  for (int i = 0; i < kParameters; i++) model[i] = (float)rank;

  for (int round = 0; round < kRounds; round++) {
    /* Rank a meets rank b if a + b is the round's number, modulo the number of ranks; some meet nobody. */
    const int partner = ((round - rank) % ranks + ranks) % ranks;
    if (partner == rank) continue;
    const int pair[2] = {rank, partner};
    const double batch = 32.0;
    canary_partial among = CANARY_PARTIAL_INIT;
    among.ranks = pair;
    among.count = 2;
    among.number = (uint64_t)round;
    among.weight = &batch;
    if (canary_partial_all_reduce(canary_world(context), &among, model, model, kParameters, CANARY_F32, CANARY_AVG,
                                  NULL) != CANARY_OK)
      failed("canary_partial_all_reduce"); /* the next round meets somebody else */
  }

  const float mean = (float)(ranks - 1) / 2, apart = model[0] > mean ? model[0] - mean : mean - model[0];
  printf("rank %d: %.3f, the mean of all is %.3f\n", rank, (double)model[0], (double)mean);
  if (canary_finalize(context) != CANARY_OK) return failed("canary_finalize");
  return apart < 0.5F * (float)ranks ? 0 : 1;
}
