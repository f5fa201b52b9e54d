/* unique_id.c -- joining without an agreed address: rank 0 makes an id of 128 bytes, the others get it by the
 * application's own means. Here that is a file that all ranks see; with MPI it would be one MPI_Bcast, with
 * torch.distributed one entry of its store. C99 and POSIX.
 *
 *   canary-run -n 3 -- unique_id /tmp/my_job.id      a path of this job alone: an id serves one job
 */
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "canarynet/canarynet.h"

enum { kWaitsMax = 3000 }; /* of 20 ms for the file */

static int failed(const char* call) {
  canary_error error = {0};
  error.struct_size = sizeof error;
  if (canary_last_error(&error) != CANARY_OK || error.message == NULL) error.message = "no details";
  fprintf(stderr, "%s: %s\n", call, error.message);
  return 1;
}

/* For this user's eyes only: whoever reads the id can join. Under another name first, so that nobody reads half of
 * it. */
static int publish(const canary_unique_id* id, const char* path) {
  char fresh[4096];
  if (snprintf(fresh, sizeof fresh, "%s.new", path) >= (int)sizeof fresh) return 0;
  const int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  FILE* file = fd < 0 ? NULL : fdopen(fd, "wb");
  if (file == NULL) return 0;
  const size_t written = fwrite(id->bytes, 1, sizeof id->bytes, file);
  return fclose(file) == 0 && written == sizeof id->bytes && rename(fresh, path) == 0;
}

static int fetch(canary_unique_id* id, const char* path) {
  const struct timespec pause = {0, 20 * 1000 * 1000};
  for (int i = 0; i < kWaitsMax; i++, nanosleep(&pause, NULL)) {
    FILE* file = fopen(path, "rb");
    if (file == NULL) continue;
    const size_t got = fread(id->bytes, 1, sizeof id->bytes, file);
    fclose(file);
    return got == sizeof id->bytes;
  }
  return 0;
}

int main(int argc, char** argv) {
  const char* rank_text = getenv("CANARY_RANK"); /* or however your program knows */
  if (argc != 2 || rank_text == NULL) {
    fprintf(stderr, "usage: canary-run -n RANKS -- unique_id PATH\n");
    return 2;
  }
  const char* path = argv[1];
  const int first = atoi(rank_text) == 0;
  canary_unique_id id;
  if (first && canary_get_unique_id(&id) != CANARY_OK) return failed("canary_get_unique_id");
  if (!(first ? publish(&id, path) : fetch(&id, path))) {
    perror(path);
    return 1;
  }

  canary_config config = CANARY_CONFIG_INIT;
  config.unique_id = &id;
  canary_context* context = NULL;
  if (canary_init(&config, &context) != CANARY_OK) return failed("canary_init");
  if (first) unlink(path); /* everybody has it: all ranks are here */

  int32_t sum = canary_rank(context);
  if (canary_all_reduce(canary_world(context), &sum, &sum, 1, CANARY_I32, CANARY_SUM, NULL) != CANARY_OK)
    return failed("canary_all_reduce");
  const int ranks = canary_world_size(context);
  if (first) printf("%d ranks have met, their numbers add up to %d\n", ranks, (int)sum);
  if (canary_finalize(context) != CANARY_OK) return failed("canary_finalize");
  return sum == ranks * (ranks - 1) / 2 ? 0 : 1;
}
