/* canarynet/policy.h -- policies: who averages parameters with whom, and when, so that nobody waits for the slowest
 * worker in every iteration. canarynet.h includes it.
 *
 * What: the workers of a group open a policy under one number; each then asks its own what to do, as long as it trains:
 *
 *     canary_policy_open(group, &options, &policy);
 *     canary_policy_lend(policy, parameters, count, NULL);
 *     while (canary_policy_next(policy, &task) == CANARY_OK && task.kind != CANARY_TASK_DONE) {
 *       if (task.kind == CANARY_TASK_TRAIN && trained_enough) {
 *         canary_policy_leave(policy);
 *       } else if (task.kind == CANARY_TASK_TRAIN) {
 *         compute a gradient, take the optimizer's step;
 *         canary_policy_trained(policy, nanoseconds that took);
 *       } else {
 *         canary_policy_exchange(policy, 0);  // changes the parameters, unless it fails
 *       }
 *     }
 *     canary_policy_close(policy);
 *
 *   A program whose parameters do not lie in one array of floats lends none, and does by itself what the task says.
 *   Names (docs/sync.md): ripples:static and ripples:static-rotating, which need no server; ripples:smart,
 *   ripples:random, esync, esync-nb and diloco, which ask one that the library runs with the job's coordinator: in rank
 *   0's process, and once that has ended in the next one's. No parameters pass there.
 * Numbers: the exchanges of policy n are the partial all-reduces number n * 2^32 to n * 2^32 + 2^32 - 1 of its group.
 *   Partial all-reduces of a program's own must use other numbers.
 * Ownership: the lists of a task are the policy's until its next call. Lent parameters stay the program's: they are
 *   written within canary_policy_exchange alone, and read there and in canary_policy_poll, so that training goes on
 *   beside an exchange. The rest is read within the call.
 * Threads: any, but only one at a time may be in a call of the same policy: another one gets CANARY_INVALID_ARGUMENT.
 * Failures: a death of another rank ends no policy. An exchange with it fails, the parameters stay as they are, and the
 *   next ones are without it. When the server's
 *   machine falls silent, which proves no death, canary_policy_next gives CANARY_COORDINATOR_LOST. Calls that make no
 *   sense give CANARY_INVALID_ARGUMENT, and nothing has changed.
 */
#ifndef CANARYNET_POLICY_H
#define CANARYNET_POLICY_H

#include "canarynet/canarynet.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct canary_policy canary_policy;

/* Begin with CANARY_POLICY_OPTIONS_INIT. Read within the call. */
typedef struct canary_policy_options {
  size_t struct_size; /* sizeof(canary_policy_options) */
  uint64_t number;    /* of this policy, on which its members agree, below 2^32; a group takes each number once */
  const char* name;
  const int* hosts;  /* of each rank of the group, from 0, equal on all ranks; NULL: as the library sees them */
  int64_t iteration; /* esync: nanoseconds that an iteration takes here, from one that was tried; 0: not known */
} canary_policy_options;
#define CANARY_POLICY_OPTIONS_INIT \
  { sizeof(canary_policy_options), 0, NULL, NULL, 0 }

enum canary_task_kind {
  CANARY_TASK_TRAIN = 0, /* an iteration, by oneself */
  CANARY_TASK_MEAN = 1,  /* an exchange: a mean over some ranks; not told of what canary_policy_poll has begun */
  CANARY_TASK_DONE = 2,  /* nothing: this worker has left, and owes nobody an exchange any more */
  CANARY_TASK_FINISH = 3 /* what runs beside iterations has come, or has to be waited for; perhaps in two steps */
};
enum canary_mean_of {
  CANARY_MEAN_OF_PARAMETERS = 0, /* which take its place */
  CANARY_MEAN_OF_DELTAS = 1      /* of one part of the parameters: what training has changed since the last time */
};
/* What to do. Begin with CANARY_TASK_INIT. */
typedef struct canary_task {
  size_t struct_size; /* sizeof(canary_task) */
  int kind;           /* an enum canary_task_kind; what follows is of exchanges */
  int count;          /* how many ranks */
  const int* ranks;   /* of the group, this one among them, ascending */
  uint64_t number;    /* of the exchange, for canary_partial: equal on these ranks, and no other list's */
  int of;             /* an enum canary_mean_of */
  int beside;         /* 1: it may be begun and left to run, and canary_policy_next says what to do meanwhile */
  /* Of deltas, for programs that lend no parameters; docs/sync.md has the arithmetic. */
  int part, parts;   /* this part of so many, from 0 */
  int counted;       /* 1: the last exchange of this part failed here, and the others had this rank's delta */
  int source;        /* the rank that gives what its outer step made to those behind; -1: nobody is behind */
  int behind_count;  /* how many are behind: with the source they make a sum, number + 1, to which it alone gives */
  int reserved;      /* 0 */
  const int* behind; /* ascending */
} canary_task;
#define CANARY_TASK_INIT \
  { sizeof(canary_task), CANARY_TASK_TRAIN, 0, NULL, 0, CANARY_MEAN_OF_PARAMETERS, 0, 0, 1, 0, -1, 0, 0, NULL }

/* Whether there is such a policy: *by_session is 1 if canary_session_rule takes the name, 0 if canary_policy_open does.
 * Pure: needs no context. CANARY_INVALID_ARGUMENT says what is wrong with the name. */
CANARY_API enum canary_status canary_policy_check(const char* name, int* by_session);
/* Returns at once; that members name different policies shows in canary_policy_next (CANARY_MISMATCH). */
CANARY_API enum canary_status canary_policy_open(canary_group* group, const canary_policy_options* options,
                                                 canary_policy** policy);
/* The task before has to be done first: training by canary_policy_trained, an exchange by canary_policy_exchange.
 * Policies that ask wait here for an answer, for at most
 * CANARY_ENTRY_LIMIT (CANARY_ENTRY_TIMEOUT: ask again, or give up). */
CANARY_API enum canary_status canary_policy_next(canary_policy* policy, canary_task* task);
/* The iteration is done; it took so long. */
CANARY_API enum canary_status canary_policy_trained(canary_policy* policy, int64_t nanoseconds);
/* While an iteration runs, and before it changes the parameters, as often as one likes; never waits. Of lent parameters
 * it begins an exchange that may run beside the iteration, once the others are ready for it: without, they wait for the
 * iteration's end. *interrupted is 1 once the iteration is not wanted any
 * more, since the others are ready (esync-nb). The caller may drop its result and call canary_policy_next at once; one
 * that ends it all the same, and reports it as trained, keeps the others waiting until then. */
CANARY_API enum canary_status canary_policy_poll(canary_policy* policy, int* interrupted);
/* The parameters that exchanges are of, equal on all ranks; before the first exchange, and once. With them esync
 * exchanges deltas, as diloco does; all ranks lend theirs, or none. diloco and esync take three times their memory,
 * with momentum four times, and up to two parts more; the other policies take it once. `options`:
 * of the partial all-reduces, the same on all ranks; NULL: none. With a codec means travel in fewer bytes; with a
 * tensor, which stands for as many numbers as there are parts, what the codec leaves out of a delta goes with the next
 * one. */
CANARY_API enum canary_status canary_policy_lend(canary_policy* policy, float* parameters, size_t count,
                                                 const canary_op_options* options);
/* Does what CANARY_TASK_MEAN or CANARY_TASK_FINISH says, with the parameters that were lent, and reports it. One that
 * runs beside iterations is only begun by the first of them. `deadline`: nanoseconds that it may take from now on; 0:
 * as the options have it. An error is that of the exchange: it has failed here, the parameters are as they were, and
 * the worker goes on. */
CANARY_API enum canary_status canary_policy_exchange(canary_policy* policy, uint64_t deadline);
/* The parameters that the last exchanges made, without what this worker has trained since: equal on all ranks that have
 * made the same ones. Where means are of parameters, the parameters themselves. */
CANARY_API enum canary_status canary_policy_common(canary_policy* policy, float* parameters, size_t count);
/* For programs that make exchanges by themselves: it is over. Where means are of parameters, also if it failed. */
CANARY_API enum canary_status canary_policy_exchanged(canary_policy* policy);
/* It has failed here; of deltas: perhaps not elsewhere. */
CANARY_API enum canary_status canary_policy_exchange_failed(canary_policy* policy);
/* This worker trains no more. Others may count on it already: canary_policy_next then has their exchanges for it, and
 * CANARY_TASK_DONE when there are none left; the others go on without it. With ripples:static all workers have to make
 * the same number of iterations, or to limit their exchanges (canary_op_options.deadline). */
CANARY_API enum canary_status canary_policy_leave(canary_policy* policy);
/* Frees it on this rank. A worker that has not left before may be waited for, up to CANARY_ENTRY_LIMIT. */
CANARY_API enum canary_status canary_policy_close(canary_policy* policy);

#ifdef __cplusplus
}
#endif
#endif
