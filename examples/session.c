/* session.c -- training with bounded staleness: a slow worker holds up nobody, and is pulled along. C99.
 *
 *   canary-run -n 4 -- session [drop|wait] [staleness]
 *
 * The workers fit y = 3x + 2, each on points of its own; the highest rank takes ten times as long for an iteration.
 * Gradients travel in two colayers (here of one parameter each) while the next iteration is computed. A step hands out
 * what has arrived meanwhile, whoever computed it and when.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "canarynet/canarynet.h"

enum { kColayers = 2, kPoints = 16 };

static int failed(const char* call) {
  canary_error error = {0};
  error.struct_size = sizeof error;
  if (canary_last_error(&error) != CANARY_OK || error.message == NULL) error.message = "no details";
  fprintf(stderr, "%s: %s\n", call, error.message);
  return 1;
}

static void apply(float* model, const float* sums, int ranks) {
  const float rate = 0.2F / (float)ranks; /* by the number of ranks, whoever contributed */
  for (int z = 0; z < kColayers; z++) model[z] -= rate * sums[z];
}

int main(int argc, char** argv) {
  canary_context* context = NULL;
  if (canary_init(NULL, &context) != CANARY_OK) return failed("canary_init");
  const int rank = canary_rank(context), ranks = canary_world_size(context);

  const size_t counts[kColayers] = {1, 1};
  canary_session_options options = CANARY_SESSION_OPTIONS_INIT;
  options.number = 1;
  options.counts = counts;
  options.colayers = kColayers;
  options.at_bound = argc > 1 && strcmp(argv[1], "wait") == 0 ? CANARY_AT_BOUND_WAIT : CANARY_AT_BOUND_DROP;
  options.staleness = argc > 2 ? atoi(argv[2]) : 8;
  canary_session* session = NULL;
  if (canary_session_open(canary_world(context), &options, &session) != CANARY_OK)
    return failed("canary_session_open");

  const struct timespec compute = {0, rank == ranks - 1 ? 10 * 1000 * 1000 : 1000 * 1000};
  const int iterations = rank == ranks - 1 && options.at_bound == CANARY_AT_BOUND_DROP ? 15 : 150;
  float model[kColayers] = {0, 0}, sums[kColayers];
  canary_session_result result = CANARY_SESSION_RESULT_INIT;
  int pulls = 0;
  for (int i = 0; i < iterations; i++) {
    nanosleep(&compute, NULL);
    float gradient[kColayers] = {0, 0};
    for (int p = 0; p < kPoints; p++) {
      const float x = (float)((p * 7 + rank * 3) % 16) / 8 - 1, y = 3 * x + 2;
      const float error = model[0] * x + model[1] - y;
      gradient[0] += error * x / kPoints;
      gradient[1] += error / kPoints;
    }
    for (int z = 0; z < kColayers; z++) {
      if (canary_session_push(session, z, &gradient[z], 1) != CANARY_OK) return failed("canary_session_push");
    }
    if (canary_session_step(session, sums, kColayers, &result, NULL) != CANARY_OK) return failed("canary_session_step");
    if (result.overtime) { /* too far behind: take all that the others have, and go on where they are */
      pulls++;
      if (canary_session_pull(session, sums, kColayers, &result, NULL) != CANARY_OK)
        return failed("canary_session_pull");
    }
    apply(model, sums, ranks);
  }
  /* Everybody is handed what is left, so that all models end alike. */
  if (canary_session_finish(session, sums, kColayers, &result, NULL) != CANARY_OK)
    return failed("canary_session_finish");
  apply(model, sums, ranks);
  printf("rank %d: y = %.3f x + %.3f, %d iterations, %llu gradients dropped, %d pulls\n", rank, (double)model[0],
         (double)model[1], iterations, (unsigned long long)result.dropped, pulls);
  if (canary_session_close(session) != CANARY_OK) return failed("canary_session_close");
  if (canary_finalize(context) != CANARY_OK) return failed("canary_finalize");
  const float off = (model[0] - 3) * (model[0] - 3) + (model[1] - 2) * (model[1] - 2);
  return off < 0.1F ? 0 : 1;
}
