/* canarynet/ratio.h -- ratios: how much of a gradient a sparsifying codec keeps, chosen while training goes on.
 * canarynet.h includes it.
 *
 * What: a smaller share of the values travels faster and loses more. A ratio tries each candidate for some iterations,
 *   which all begin at the same checkpoint, and takes the knee of the Pareto front of three things: the time to
 *   compress (measured on this machine), the time to exchange (predicted from the links as they are measured now) and
 *   the compression gain (the share of the energy that was sent). It chooses again when links have changed, and
 *   explores again when the gain has moved by a tenth. Source: Tyagi, Swany, "Flexible communication for optimal
 *   distributed learning over unpredictable networks" (2023), section 3-E. docs/compression.md has more.
 * Order: all ranks of the group create it with the same options, and call next and report in the same order with
 *   regard to the group's other operations: create and report run small operations of the group.
 * Threads: any, but only one at a time may be in a call of the same ratio: another one gets CANARY_INVALID_ARGUMENT.
 * Failures: a failed operation of a ratio ends it. So does an operation of the group that is pending where none may be:
 *   in report on all ranks, of which the others are told the rank; in next on that rank alone. Other calls that make no
 *   sense give CANARY_INVALID_ARGUMENT, and nothing has changed.
 *
 *   for (;;) {
 *     canary_ratio_next(ratio, &options.codec);    // may call the checkpoint function
 *     canary_all_reduce_with(group, gradient, gradient, count, CANARY_F32, CANARY_AVG, &options, NULL);
 *     apply(gradient);
 *     canary_ratio_report(ratio);
 *   }
 */
#ifndef CANARYNET_RATIO_H
#define CANARYNET_RATIO_H

#include "canarynet/canarynet.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct canary_ratio canary_ratio;

/* Training state goes into memory, or comes back from there as it was then. The group's error feedback is kept beside
 * it by the library. Called within canary_ratio_next, in its thread; it may call the library, but not with this
 * ratio. */
enum canary_checkpoint { CANARY_CHECKPOINT_SAVE = 0, CANARY_CHECKPOINT_RESTORE = 1 };
typedef void (*canary_checkpoint_fn)(void* user, enum canary_checkpoint what);

/* Begin with CANARY_RATIO_OPTIONS_INIT. Read within the call. */
typedef struct canary_ratio_options {
  size_t struct_size; /* sizeof(canary_ratio_options) */
  /* A codec as canary_codec has it, without its ratio: "topk", "lwtopk", "mstopk", "agtopk", "artopk:star",
   * "artopk:var", each with ",or-dense" or ",auto" if wanted. By "artopk:star,auto" operations also choose between
   * AR-Topk, the all-gather of top-k, and dense. */
  const char* codec;
  uint64_t tensor; /* whose gain counts: the options' `tensor` of the operations, other than 0 */
  uint64_t count;  /* its elements (f32) */
  /* Candidates are high, high / factor, ... down to low, in multiples of low. 0.000001 <= low <= high <= 1, and factor
   * is 1.1 or more. */
  double high;
  double low;
  double factor;
  double gain_change; /* relative; so much, and candidates are explored again */
  int iterations;     /* of a candidate's exploration, and between two looks at gain and links: 1 to 10,000 */
  int reserved;       /* 0 */
  canary_checkpoint_fn checkpoint;
  void* user;
} canary_ratio_options;
#define CANARY_RATIO_OPTIONS_INIT \
  { sizeof(canary_ratio_options), NULL, 0, 0, 0.1, 0.001, 3, 0.1, 10, 0, NULL, NULL }

/* Blocks until all members of the group have called it, and until each candidate's codec was timed: some milliseconds
 * each. CANARY_MISMATCH, on all ranks: their options differ; the error names a rank. */
CANARY_API enum canary_status canary_ratio_create(canary_group* group, const canary_ratio_options* options,
                                                  canary_ratio** ratio);
/* The codec of the next iteration, for canary_op_options. Before it returns, training state may have been saved or
 * restored. No operation of the group may be pending. */
CANARY_API enum canary_status canary_ratio_next(canary_ratio* ratio, uint32_t* codec);
/* The iteration has ended. The last one of every `iterations` runs a small operation of the group; no other may be
 * pending then. */
CANARY_API enum canary_status canary_ratio_report(canary_ratio* ratio);
/* Frees it on this rank. */
CANARY_API enum canary_status canary_ratio_destroy(canary_ratio* ratio);

/* What it has found; equal on all ranks. */
typedef struct canary_ratio_state {
  size_t struct_size; /* sizeof(canary_ratio_state) */
  double ratio;       /* that the next iteration takes */
  /* Mean over ranks, of the last `iterations`, as it follows from the smoothed gains before and after them: right where
   * gradients' energies are alike. 1 where nothing is left out. */
  double gain;
  double alpha_seconds;  /* of the slowest rank's links, as they were when the ratio was chosen; 0: none is measured */
  double byte_seconds;   /* likewise, to send a byte to one peer */
  uint64_t explorations; /* that have begun */
  uint64_t choices;      /* of a ratio among all candidates */
  int32_t exploring;     /* 1: a candidate is tried */
  int32_t reserved;
} canary_ratio_state;
CANARY_API enum canary_status canary_ratio_read(canary_ratio* ratio, canary_ratio_state* state);

#ifdef __cplusplus
}
#endif
#endif
