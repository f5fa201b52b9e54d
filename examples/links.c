/* links.c -- prints what is known of every link of rank 0, after some traffic and again after an idle while. C99.
 *
 *   canary-run -n 3 --hosts 3 --nics 2 --rate 500mbit,100mbit -- links
 */
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "canarynet/canarynet.h"

enum { kCount = 1 << 20, kRounds = 20 };

static int failed(const char* call) {
  canary_error error = {0};
  error.struct_size = sizeof error;
  if (canary_last_error(&error) != CANARY_OK || error.message == NULL) error.message = "no details";
  fprintf(stderr, "%s: %s\n", call, error.message);
  return 1;
}

static int print_links(canary_context* context, const char* when) {
  size_t count = 0, room = 0;
  if (canary_links(context, NULL, 0, &room) != CANARY_OK) return failed("canary_links");
  canary_link_stats* links = calloc(room + 1, sizeof *links);
  if (links == NULL) return 1;
  links[0].struct_size = sizeof *links;
  if (canary_links(context, links, room + 1, &count) != CANARY_OK) {
    free(links);
    return failed("canary_links");
  }
  printf("%s\n", when);
  printf("%6s %-16s %-10s %5s %10s %12s %7s\n", "rank", "host", "NIC", "up", "alpha us", "beta MB/s", "share");
  for (size_t i = 0; i < count && i < room + 1; i++) {
    const canary_link_stats* l = &links[i];
    printf("%6d %-16s %-10s %5s %10.1f %12.1f %6.0f%%\n", (int)l->rank, l->host, l->device, l->up ? "yes" : "no",
           (double)l->alpha_ns * 1e-3, (double)l->beta_bytes_per_second * 1e-6, l->share * 100);
  }
  free(links);
  return 0;
}

int main(int argc, char** argv) {
  canary_context* context = NULL;
  if (canary_init(NULL, &context) != CANARY_OK) return failed("canary_init");
  float* values = calloc(kCount, sizeof *values);
  int bad = values == NULL;
  for (int i = 0; i < kRounds && !bad; i++) {
    if (canary_all_reduce(canary_world(context), values, values, kCount, CANARY_F32, CANARY_SUM, NULL) != CANARY_OK)
      bad = failed("canary_all_reduce");
  }
  if (!bad && canary_rank(context) == 0) bad = print_links(context, "after traffic:");
  const struct timespec idle = {argc > 1 ? atoi(argv[1]) : 0, 0};
  if (idle.tv_sec != 0) nanosleep(&idle, NULL);
  if (!bad && idle.tv_sec != 0 && canary_rank(context) == 0) bad = print_links(context, "idle since:");
  if (!bad && canary_barrier(canary_world(context), NULL) != CANARY_OK) bad = failed("canary_barrier");
  free(values);
  if (canary_finalize(context) != CANARY_OK) return failed("canary_finalize");
  return bad;
}
