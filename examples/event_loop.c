/* event_loop.c -- all-reduces in an event loop: one epoll waits for their completion and for a timer beside it, as a
 * server would for its sockets. C99 and Linux.
 *
 *   canary-run -n 4 -- event_loop
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "canarynet/canarynet.h"

enum { kRounds = 64, kInFlight = 4, kCount = 64 * 1024 };

struct slot {
  canary_op* op;
  int round;
  float values[kCount];
};
static struct slot slots[kInFlight];

static int failed(const char* call) {
  canary_error error = {0};
  error.struct_size = sizeof error;
  if (canary_last_error(&error) != CANARY_OK || error.message == NULL) error.message = "no details";
  fprintf(stderr, "%s: %s\n", call, error.message);
  return 1;
}

static enum canary_status start(canary_group* world, struct slot* slot, int round) {
  slot->round = round;
  for (int i = 0; i < kCount; i++) slot->values[i] = (float)round;
  return canary_all_reduce(world, slot->values, slot->values, kCount, CANARY_F32, CANARY_SUM, &slot->op);
}

static int watch(int epoll, int fd) {
  struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

int main(void) {
  canary_context* context = NULL;
  int completions = -1;
  if (canary_init(NULL, &context) != CANARY_OK) return failed("canary_init");
  if (canary_context_fd(context, &completions) != CANARY_OK) return failed("canary_context_fd");
  canary_group* world = canary_world(context);
  const int ranks = canary_world_size(context);

  const int epoll = epoll_create1(EPOLL_CLOEXEC), timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
  const struct itimerspec every_ms = {{0, 1000 * 1000}, {0, 1000 * 1000}};
  if (epoll < 0 || timer < 0 || timerfd_settime(timer, 0, &every_ms, NULL) != 0 || watch(epoll, timer) != 0 ||
      watch(epoll, completions) != 0) {
    perror("epoll");
    return 1;
  }

  int started = 0, done = 0, wakes = 0;
  uint64_t ticks = 0;
  for (; started < kInFlight; started++) {
    if (start(world, &slots[started], started) != CANARY_OK) return failed("canary_all_reduce");
  }
  while (done < kRounds) {
    struct epoll_event events[2];
    const int ready = epoll_wait(epoll, events, 2, -1);
    for (int e = 0; e < ready; e++) {
      if (events[e].data.fd == timer) { /* whatever else the program does */
        uint64_t passed = 0;
        if (read(timer, &passed, sizeof passed) == (ssize_t)sizeof passed) ticks += passed;
        continue;
      }
      /* Drain first, then look: what completes in between makes the descriptor readable again. */
      wakes++;
      if (canary_context_drain(context) != CANARY_OK) return failed("canary_context_drain");
      /* The oldest first: every rank starts its operations in the same order. */
      for (struct slot* slot = &slots[done % kInFlight]; slot->op != NULL; slot = &slots[done % kInFlight]) {
        const enum canary_status status = canary_op_test(slot->op);
        if (status == CANARY_WOULD_BLOCK) break;
        slot->op = NULL; /* its result was told */
        if (status != CANARY_OK) return failed("canary_all_reduce");
        if (slot->values[kCount - 1] != (float)(slot->round * ranks)) {
          fprintf(stderr, "round %d: %g\n", slot->round, (double)slot->values[kCount - 1]);
          return 1;
        }
        done++;
        if (started < kRounds && start(world, slot, started++) != CANARY_OK) return failed("canary_all_reduce");
      }
    }
  }
  if (canary_rank(context) == 0)
    printf("%d all-reduces in %d wake-ups, and %d ticks of a timer beside them\n", done, wakes, (int)ticks);
  close(epoll); /* before the descriptor that it watches ends with the context */
  close(timer);
  return canary_finalize(context) == CANARY_OK ? 0 : failed("canary_finalize");
}
