/* canarynet/bundle.h -- bundles: the tensors of a model are declared once and reduced in each iteration, the small ones
 * together. canarynet.h includes it.
 *
 * What: a message costs a start-up time whatever its size. A bundle's tensors are submitted one by one, as the backward
 *   pass makes them, and travel in groups of consecutive ones; a group leaves when its last tensor has been submitted.
 *   Left alone, a bundle finds its groups itself: four iterations measure when tensors are ready and how long messages
 *   take, then rank 0 plans and all ranks switch in the same iteration. It measures again when iterations take another
 *   time than expected, at most once in 100. docs/using.md has more.
 * Shapes and units: counts are elements of the bundle's type. Times are seconds.
 * Ownership: a tensor's memory is lent to the library from its submission until canary_bundle_wait (or
 *   canary_bundle_wait_tensor for it) has returned, and is the application's otherwise. It must live, where it is,
 *   until canary_bundle_destroy. Tensors whose groups lie in memory without a gap, upwards or downwards, are reduced
 *   where they are; other groups are copied into memory of the bundle and back. That memory is as large as the bundle,
 *   and is only taken where groups may need it.
 * Codecs: a bundle's messages may travel by a codec, with the group's error feedback. What is left out belongs to the
 *   tensors' elements, whatever messages they travel in, so new plans lose nothing of it. With error feedback groups
 *   are reduced where they are only if they lie as all tensors do, upwards or downwards.
 * Order: a bundle's messages are operations of its group. All ranks declare the same tensors in the same order, and
 *   call submit and wait in the same order with regard to the group's other operations. Tensors may be submitted in any
 *   order: one waits for those declared before it.
 * Threads: any, but only one at a time may be in a call of the same bundle: another one gets CANARY_INVALID_ARGUMENT.
 * Failures: a failed message ends the bundle and its group on all ranks; the error names the message's tensors. A value
 *   that the codec does not encode ends the bundle on all ranks, and the group lives on. Calls that make no sense give
 *   CANARY_INVALID_ARGUMENT, and nothing has changed.
 * Allocation: after its creation a bundle allocates only in the iterations that end with a new plan. With a codec the
 *   first iteration also makes room for what is left out, twice as large as the bundle, five times with momentum.
 */
#ifndef CANARYNET_BUNDLE_H
#define CANARYNET_BUNDLE_H

#include "canarynet/canarynet.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct canary_bundle canary_bundle;

/* Which tensors travel together. */
enum canary_merge {
  CANARY_MERGE_EXACT = 0,     /* the fastest groups for what was measured */
  CANARY_MERGE_MGWFBP = 1,    /* algorithm 1 of the MG-WFBP paper, for comparison */
  CANARY_MERGE_WFBP = 2,      /* each tensor by itself */
  CANARY_MERGE_SYNCEASGD = 3, /* all in one message */
  CANARY_MERGE_GIVEN = 4      /* the groups that the options give */
};

typedef struct canary_tensor {
  void* data;   /* reduced in place; may be NULL if count is 0 */
  size_t count; /* elements */
} canary_tensor;

/* Begin with CANARY_BUNDLE_OPTIONS_INIT. Read within the call. */
typedef struct canary_bundle_options {
  size_t struct_size; /* sizeof(canary_bundle_options) */
  uint32_t policy;    /* an enum canary_merge */
  uint32_t priority;  /* an enum canary_priority, of all messages */
  /* With CANARY_MERGE_GIVEN, for each group the number of tensors in it and in those before it: rising, the last one
   * the number of all tensors. Where runs must repeat bit for bit, give the groups or take a policy that does not
   * measure: the order in which ranks are added may depend on a message's size. */
  const size_t* ends;
  size_t groups; /* how many */
  /* Of all messages, as canary_op_options has them; the type is f32 then, and redop CANARY_SUM or CANARY_AVG. No codecs
   * of matrices (power, svd). `tensor` numbers the bundle as one tensor of all its elements, in the order in which
   * they are declared, or, where all tensors lie downwards in memory on all ranks, in the opposite one. What was saved
   * of it (canary_feedback_save) can be restored for a bundle that declares the same and lies the same way on all ranks
   * as before; nothing tells whether it does. */
  uint32_t codec;
  float momentum;
  uint64_t tensor;
} canary_bundle_options;
#define CANARY_BUNDLE_OPTIONS_INIT \
  { sizeof(canary_bundle_options), CANARY_MERGE_EXACT, CANARY_PRIORITY_NORMAL, NULL, 0, 0, 0, 0 }

#define CANARY_BUNDLE_TENSORS_MAX 4096

/* Declares `count` tensors (1 to CANARY_BUNDLE_TENSORS_MAX) in the order of their submission: backward. They must not
 * overlap. Blocks until all members of the group have called it. The list is read within the call; `options` may be
 * NULL. CANARY_MISMATCH, on all ranks: they declare different bundles; the error names two ranks and what differs, and
 * the group lives on. */
CANARY_API enum canary_status canary_bundle_create(canary_group* group, const canary_tensor* tensors, size_t count,
                                                   enum canary_type type, enum canary_redop redop,
                                                   const canary_bundle_options* options, canary_bundle** bundle);
/* Tensor number `tensor` is ready, once in each iteration. It does not wait for other ranks, except where 1,024
 * operations of the group wait for those before them, as other operations do. */
CANARY_API enum canary_status canary_bundle_submit(canary_bundle* bundle, size_t tensor);
/* Ends the iteration: returns when all tensors are reduced. All must have been submitted. */
CANARY_API enum canary_status canary_bundle_wait(canary_bundle* bundle);
/* Returns when this tensor is reduced. All tensors of its group must have been submitted; canary_bundle_wait still ends
 * the iteration. */
CANARY_API enum canary_status canary_bundle_wait_tensor(canary_bundle* bundle, size_t tensor);
/* Frees it on this rank. Waits for messages that are under way. */
CANARY_API enum canary_status canary_bundle_destroy(canary_bundle* bundle);

/* How a bundle travels now. */
typedef struct canary_bundle_state {
  size_t struct_size;      /* sizeof(canary_bundle_state) */
  uint64_t iterations;     /* that have ended */
  uint64_t plans;          /* made so far from measurements */
  uint64_t groups;         /* messages in an iteration */
  uint64_t copied_bytes;   /* of tensors whose groups are copied, in each iteration */
  uint64_t staging_bytes;  /* memory that the bundle has for such copies */
  double expected_seconds; /* of an iteration by the plan, from the end of one to the end of the next; 0: no plan */
  double median_seconds;   /* of the last 64 by the plan; 0: none yet */
  /* What a message of p bytes took while it was measured, as the plan has it: start_seconds + p x byte_seconds. */
  double start_seconds;
  double byte_seconds;
} canary_bundle_state;
/* Fills at most `capacity` entries of `ends` as canary_bundle_options has them: the groups of the next iteration. */
CANARY_API enum canary_status canary_bundle_read(canary_bundle* bundle, canary_bundle_state* state, size_t* ends,
                                                 size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
