/* ring.c -- messages between the ranks of a group: a token goes round, every rank adds one. C99.
 *
 *   canary-run -n 4 -- ring
 */
#include <stdio.h>

#include "canarynet/canarynet.h"

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
  canary_group* world = canary_world(context);
  const int rank = canary_rank(context), ranks = canary_world_size(context);
  const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;

  /* The receive is posted first and waited for last: with blocking calls alone a world of one rank would wait for
   * itself. */
  int32_t token = 0, got = 0;
  canary_op *receive = NULL, *send = NULL;
  if (canary_recv(world, &got, 1, CANARY_I32, before, &receive) != CANARY_OK) return failed("canary_recv");
  if (rank == 0) {
    token = 1;
    if (canary_send(world, &token, 1, CANARY_I32, next, &send) != CANARY_OK) return failed("canary_send");
  }
  if (canary_op_wait(receive) != CANARY_OK) return failed("canary_recv");
  if (rank != 0) {
    token = got + 1;
    if (canary_send(world, &token, 1, CANARY_I32, next, &send) != CANARY_OK) return failed("canary_send");
  }
  if (canary_op_wait(send) != CANARY_OK) return failed("canary_send");

  const int expected = rank == 0 ? ranks : rank;
  if (got != expected) {
    fprintf(stderr, "rank %d: the token says %d instead of %d\n", rank, (int)got, expected);
    return 1;
  }
  if (rank == 0) printf("the token passed %d ranks\n", (int)got);
  if (canary_finalize(context) != CANARY_OK) return failed("canary_finalize");
  return 0;
}
