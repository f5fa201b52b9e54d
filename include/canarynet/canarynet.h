/* canarynet/canarynet.h -- the C ABI of libcanarynet, in C99. It declares only what works.
 *
 * What: a process joins a job as one rank (canary_init), or as several ranks with one thread each, forms groups of
 *   ranks and runs collectives over all NICs at once.
 * Shapes and units: counts are elements of the given type; buffers are contiguous; times are nanoseconds.
 * Ownership: an operation borrows its buffers until it has completed (canary_op_wait returns, or canary_op_test says
 *   so). Until then do not write them, do not read the output, and do not hand them to another operation that writes
 *   them or reads what this one writes: the library compares the buffers of one call, not those of two calls. Handles
 *   belong to the library. They end with their destroy call or canary_finalize, operations with the call that returns
 *   their result. A handle that has ended may still be passed: the call returns CANARY_INVALID_ARGUMENT (or -1, NULL
 *   or "" if it returns no status).
 * Fork: a forked child that does not exec has none of its parent's handles: they give CANARY_INVALID_ARGUMENT there,
 *   and nothing that the child does or destroys reaches the parent's job. It may join a job of its own.
 * Threads: every call may come from any thread. The operations of a group are numbered in the order of the calls, so
 *   all ranks must make them in the same order; a rank that calls from several threads has to order the calls itself.
 *   A thread in canary_op_wait drives the engine itself.
 * Failures: every call returns a canary_status; canary_last_error() has the details for the calling thread. An
 *   operation that fails ends its group: every pending and later operation of that group gives the same verdict.
 *   Nothing hangs: the entry and exchange limits (docs/settings.md) bound every wait. The library prints nothing and
 *   installs no signal handler.
 */
#ifndef CANARYNET_CANARYNET_H
#define CANARYNET_CANARYNET_H

#include <stddef.h>
#include <stdint.h>

#include "canarynet/types.h"

#define CANARY_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef struct canary_context canary_context; /* one rank of a job */
typedef struct canary_group canary_group;     /* ordered set of ranks with its own sequence of operations */
typedef struct canary_op canary_op;           /* an operation in flight */

/* The ranks of a job find each other by this id. It is plain bytes, which the application carries by any means it has
 * (a file, MPI, a store). */
#define CANARY_UNIQUE_ID_BYTES 128
typedef struct canary_unique_id {
  uint8_t bytes[CANARY_UNIQUE_ID_BYTES];
} canary_unique_id;

/* How to join. Zero-initialise it, set struct_size, and fill in what differs from the environment. */
typedef struct canary_config {
  size_t struct_size; /* sizeof(canary_config) */
  /* "tcp://host:port" where rank 0 listens; NULL: $CANARY_JOIN, or the launcher's. Not needed when world_size is 1.
   * Anyone who reaches the port can join; unique_id adds a secret. */
  const char* join;
  int rank;                    /* -1: $CANARY_RANK, or the launcher's (torchrun, Open MPI, SLURM) */
  int world_size;              /* 0: $CANARY_WORLD_SIZE, or the launcher's */
  const char* const* settings; /* "name=value" strings (docs/settings.md), over the environment; may be NULL */
  size_t settings_count;
  const canary_unique_id* unique_id; /* of canary_get_unique_id, instead of `join`; NULL: none. Read within the call. */
  /* How many threads of this process join, each as one rank and all with equal settings; 0: $CANARY_LOCAL_RANKS, or 1.
   * They share one engine, so what they reduce among themselves crosses no NIC. canary_init blocks until all of them
   * have called it. */
  int local_ranks;
} canary_config;
#define CANARY_CONFIG_INIT \
  { sizeof(canary_config), NULL, -1, 0, NULL, 0, NULL, 0 }

/* Makes an id for one job and starts to listen for its ranks at once, on this host's NICs (first those that
 * CANARY_RAILS or CANARY_SOCKET_IFNAME choose), or on loopback alone unless CANARY_INSECURE=1. The process that will be
 * rank 0 calls it before its canary_init; all ranks then pass the same bytes in canary_config, or as
 * CANARY_JOIN=id:HEX. Ranks with another id are turned away. At most 64 ids of a process wait for their rank 0: the
 * oldest one ends when another is made. */
CANARY_API enum canary_status canary_get_unique_id(canary_unique_id* id);

/* Joins the job: blocks until all ranks are there or the join time-out has passed. `config` may be NULL (everything
 * comes from the environment). */
CANARY_API enum canary_status canary_init(const canary_config* config, canary_context** context);
/* Leaves the job and frees the context, its groups and operations. Peers see a farewell, not a death. It blocks for
 * about a second at most, unless a silent peer still needs something from this rank: then it waits, up to
 * CANARY_SILENCE_LIMIT. Other threads may be in calls of the context: those that wait get CANARY_CLOSED, and this call
 * returns when all have left. Buffers of operations that were pending are the caller's again.
 * With several local ranks, the last one to call it leaves the job; an operation that an earlier one leaves pending
 * ends its group. */
CANARY_API enum canary_status canary_finalize(canary_context* context);

CANARY_API int canary_rank(const canary_context* context);
CANARY_API int canary_world_size(const canary_context* context);

/* The group of all ranks. It exists from canary_init on and must not be destroyed. */
CANARY_API canary_group* canary_world(canary_context* context);
/* Forms a group of `count` distinct world ranks in the given order (the index is the rank in the group). Only the
 * members call it, all with the same list; the same ranks in another order are another group. It blocks until all
 * members have called, for at most CANARY_ENTRY_LIMIT. */
CANARY_API enum canary_status canary_group_create(canary_context* context, const int* ranks, int count,
                                                  canary_group** group);
/* Ends the group for all members: pending and later operations give CANARY_ABORTED with this text on every rank. */
CANARY_API enum canary_status canary_group_abort(canary_group* group, const char* reason);
/* Frees the handle on this rank only; no operation of the group may be pending. */
CANARY_API enum canary_status canary_group_destroy(canary_group* group);
CANARY_API int canary_group_rank(const canary_group* group);
CANARY_API int canary_group_size(const canary_group* group);

/* How one operation is to be done, for the calls whose names end in _with. Begin with CANARY_OP_OPTIONS_INIT. The
 * options are read within the call. docs/using.md tells how priorities work. */
typedef struct canary_op_options {
  size_t struct_size; /* sizeof(canary_op_options) */
  /* An enum canary_priority, for this rank alone: it is no argument that ranks must agree on. What an urgent operation
   * has to send goes before everything that is not urgent, piece by piece, on all NICs; the rest keeps a sixteenth of
   * the bytes. An operation is only as fast as its slowest rank, so give the same priority on all of them. */
  uint32_t priority;
  /* all_reduce of CANARY_F32 with CANARY_SUM or CANARY_AVG: the number of a codec (canary_codec), by which values
   * travel in fewer bytes and with less precision; 0: none. All ranks get the same bits. Codec and tensor are arguments
   * that ranks must agree on. An element that is NaN or infinite is refused (but with ",or-dense"): the operation then
   * fails on all ranks with CANARY_INVALID_ARGUMENT, which names the element and its rank, its output holds nothing,
   * and the group lives on. docs/compression.md tells which codec is good for what. */
  uint32_t codec;
  uint64_t deadline; /* nanoseconds from the call on, as canary_op_set_deadline has them; 0: none */
  /* With a codec: the application's number for this tensor, other than 0. What the codec leaves out on this rank is
   * kept and added to the tensor's next input, so that it is late and not lost (error feedback). It takes twice the
   * tensor's memory. An operation waits for an earlier one of the same tensor. A tensor keeps its length: with
   * another one the group ends (CANARY_MISMATCH). Not without a codec. 0: what is left out is lost. */
  uint64_t tensor;
  /* With a tensor and a codec that leaves out whole elements (artopk, agtopk, topk, lwtopk, mstopk, randomk): from 0 to
   * below 1; 0: none. This rank's gradients gather momentum before the codec chooses among them, and an element that
   * has been sent with all that was left of it begins anew (Deep Gradient Compression). Use it in place of momentum in
   * the optimizer, which multiplies what comes late: there, take plain descent. It takes another three times the
   * tensor's memory. Give the same value on all ranks and in every operation of the tensor; without it, or when it
   * travels dense, the tensor's velocity ends. docs/compression.md has values that have worked. */
  float momentum;
  uint32_t reserved; /* 0 */
  /* With a codec of matrices (power, svd), which need it: the buffer is a matrix of so many rows, each of them
   * count / rows numbers, one row behind the other. An argument on which ranks must agree. With a tensor, power also
   * keeps what its next operation begins with; give a tensor one shape. 0: it is no matrix. */
  uint64_t rows;
} canary_op_options;
#define CANARY_OP_OPTIONS_INIT \
  { sizeof(canary_op_options), CANARY_PRIORITY_NORMAL, 0, 0, 0, 0.0f, 0, 0 }

/* The number of a codec, from its text: "int8", "sketch:8", "topk:0.01,or-dense" (docs/compression.md); or of a choice
 * that operations make by what they take: "auto" for none, bf16 or int8, "auto:0.01" for one of these or topk:0.01,
 * "sketch:8,auto" for none or that codec, and "artopk:star:0.01,auto" for none, that, or agtopk:0.01. Pure: equal
 * texts have equal numbers everywhere. CANARY_INVALID_ARGUMENT says what is wrong with the text; seeds have no
 * number. */
CANARY_API enum canary_status canary_codec(const char* text, uint32_t* codec);
/* For the first steps of training, in which gradients change fast: a codec with a share (topk:0.01, artopk:var:0.01)
 * that keeps more at first. Step 0 keeps `first` of all values, and every stage a quarter of the one before it; the
 * `steps` are cut into as many equal stages as it takes to come down to the codec's own share, which every step from
 * `steps` on keeps. Pure: equal arguments give equal numbers everywhere. CANARY_INVALID_ARGUMENT: the codec has no
 * share, or `first` is not from that to 1. */
CANARY_API enum canary_status canary_codec_warm_up(uint32_t codec, double first, uint64_t step, uint64_t steps,
                                                   uint32_t* now);
/* What the codecs of this rank's operations in the group have left out of their tensors, as bytes for a checkpoint. On
 * entry *size is the room at `bytes`, on return what the state takes; `bytes` may be NULL to ask for that. With less
 * room than needed nothing is written, and the result is CANARY_LIMIT. No operation of the group may be pending. */
CANARY_API enum canary_status canary_feedback_save(canary_group* group, void* bytes, size_t* size);
/* Takes a saved state in place of what there is. CANARY_MISMATCH: the bytes are damaged or of another version, and
 * nothing has changed. No operation of the group may be pending. */
CANARY_API enum canary_status canary_feedback_restore(canary_group* group, const void* bytes, size_t size);
/* The share of the energy (sum of squares) of a tensor that its codec sent, smoothed over about ten operations: 1 where
 * nothing is left out; tensor 0: of all tensors, 1 before the first operation. CANARY_INVALID_ARGUMENT: the tensor was
 * never sent by a codec. The norm of what is left out now goes
 * to *residual_norm; either pointer may be NULL. No operation of the group may be pending. */
CANARY_API enum canary_status canary_feedback_gain(canary_group* group, uint64_t tensor, double* gain,
                                                   double* residual_norm);
/* How often each rank of the group has been the root of this rank's operations by artopk, in calls that ended well:
 * `counts` has room for one number per rank of the group, of which there are `ranks`, else CANARY_INVALID_ARGUMENT. By
 * artopk:star ranks take turns; by artopk:var a rank that is root far more often holds other data than the others. No
 * operation of the group may be pending. */
CANARY_API enum canary_status canary_top_k_roots(canary_group* group, uint64_t* counts, size_t ranks);

/* Collectives. With `op` NULL the call blocks until completion; otherwise it returns at once with a handle for
 * canary_op_test and canary_op_wait. Where 1,024 operations of the group wait for those before them, it returns only
 * when one of these has begun, which takes as long as those before it do; a deadline counts from the call all the same.
 * An operation is in place if input == output for all_reduce, reduce and broadcast; if output == input + rank * count
 * elements for reduce_scatter, and for scatter at the root; if input == output + rank * count elements for all_gather,
 * and for gather at the root; and for all_gather_v if input == output + the counts of the ranks before. Every other
 * overlap between what a rank reads and what it writes is refused with CANARY_INVALID_ARGUMENT, which names both
 * ranges; all_to_all and all_to_all_v refuse every overlap. A root is a rank in the group. Lists of counts and
 * displacements hold one number of elements for each rank of the group, and are borrowed for the call only. */

/* output[i] = reduction over ranks of input[i], i < count. Bit-identical on all ranks. */
CANARY_API enum canary_status canary_all_reduce(canary_group* group, const void* input, void* output, size_t count,
                                                enum canary_type type, enum canary_redop redop, canary_op** op);
/* input: size * count elements; output: count elements, the reduction over ranks of their block `rank`. */
CANARY_API enum canary_status canary_reduce_scatter(canary_group* group, const void* input, void* output, size_t count,
                                                    enum canary_type type, enum canary_redop redop, canary_op** op);
/* input: count elements; output: size * count elements, block i from rank i. */
CANARY_API enum canary_status canary_all_gather(canary_group* group, const void* input, void* output, size_t count,
                                                enum canary_type type, canary_op** op);
/* Like all_gather, with counts[i] elements from rank i; the counts must be equal on all ranks. input: counts[rank]
 * elements; output: all blocks, one behind the other: block i begins at counts[0] + ... + counts[i-1]. In place, input
 * is where the rank's own block begins in output. */
CANARY_API enum canary_status canary_all_gather_v(canary_group* group, const void* input, void* output,
                                                  const size_t* counts, enum canary_type type, canary_op** op);
/* input and output: size * count elements; block j of the input goes to rank j, block i of the output comes from rank
 * i. */
CANARY_API enum canary_status canary_all_to_all(canary_group* group, const void* input, void* output, size_t count,
                                                enum canary_type type, canary_op** op);
/* send_counts[j] elements from input + send_displacements[j] go to rank j; receive_counts[i] elements from rank i go to
 * output + receive_displacements[i]. receive_counts[i] must be what rank i sends here; if not, both ranks get
 * CANARY_MISMATCH, and all others with their next call at the latest. Displacements may be NULL: the blocks then lie
 * one behind the other. Received blocks must not overlap. The operation completes when the arguments of all ranks have
 * been compared with this rank's own. */
CANARY_API enum canary_status canary_all_to_all_v(canary_group* group, const void* input, const size_t* send_counts,
                                                  const size_t* send_displacements, void* output,
                                                  const size_t* receive_counts, const size_t* receive_displacements,
                                                  enum canary_type type, canary_op** op);
/* output[i] on every rank = input[i] of `root` (rank in the group); input is read at the root only. */
CANARY_API enum canary_status canary_broadcast(canary_group* group, const void* input, void* output, size_t count,
                                               enum canary_type type, int root, canary_op** op);
/* output[i] at `root` = reduction over ranks of input[i], i < count; elsewhere output is not touched and may be
 * NULL. */
CANARY_API enum canary_status canary_reduce(canary_group* group, const void* input, void* output, size_t count,
                                            enum canary_type type, enum canary_redop redop, int root, canary_op** op);
/* input: count elements; output at `root`: size * count elements, block i from rank i; elsewhere output is not touched
 * and may be NULL. */
CANARY_API enum canary_status canary_gather(canary_group* group, const void* input, void* output, size_t count,
                                            enum canary_type type, int root, canary_op** op);
/* input at `root`: size * count elements, elsewhere it is not read and may be NULL; output: count elements, the root's
 * block `rank`. */
CANARY_API enum canary_status canary_scatter(canary_group* group, const void* input, void* output, size_t count,
                                             enum canary_type type, int root, canary_op** op);
/* Completes on a rank after every rank has called it. */
CANARY_API enum canary_status canary_barrier(canary_group* group, canary_op** op);

/* Which ranks reduce together in canary_partial_all_reduce. Begin with CANARY_PARTIAL_INIT. It is read within the
 * call. */
typedef struct canary_partial {
  size_t struct_size; /* sizeof(canary_partial) */
  const int* ranks;   /* ranks in the group, the caller among them, in any order; all members name the same ones */
  int count;          /* how many */
  int reserved;       /* 0 */
  /* The caller's number for this exchange, on which its members agree: a round, or what a group generator handed out.
   * A rank gives it to one list of ranks. Sets of ranks that share none may use one number at once. A policy has 2^32
   * numbers of its group for itself (canarynet/policy.h). */
  uint64_t number;
  /* This rank's weight, a finite number of at least 0, for batches of unequal size; NULL: weights do not count, which
   * all members must agree on. With CANARY_AVG the result is the sum of weight x input over the sum of the weights,
   * with CANARY_SUM the sum of weight x input. Floats only. */
  const double* weight;
} canary_partial;
#define CANARY_PARTIAL_INIT \
  { sizeof(canary_partial), NULL, 0, 0, 0, NULL }
/* An all_reduce among some ranks of the group, for which no group is formed; only they call it. Any number of them runs
 * at once, beside each other and beside the group's operations, in no order. Its failure ends no group: who is dead,
 * silent or does not call within CANARY_ENTRY_LIMIT is named in the error of the other members, and what other ranks do
 * goes on. So it works, among ranks that live, also where the group has ended because another rank was lost; not where
 * it was aborted. Lists, types and reductions that differ give CANARY_MISMATCH, which names two ranks. After a failure
 * the output holds nothing, and the next attempt takes another number: one of the last 512 that have run is
 * CANARY_INVALID_ARGUMENT. At most 1,024 of a process are under way. docs/using.md has more. */
CANARY_API enum canary_status canary_partial_all_reduce(canary_group* group, const canary_partial* among,
                                                        const void* input, void* output, size_t count,
                                                        enum canary_type type, enum canary_redop redop, canary_op** op);
/* With options. A codec is none of those that run several operations (artopk, agtopk, power, svd), nor a choice; with a
 * tensor, what it leaves out stays with this rank and goes with the next all_reduce of the group, partial or not, that
 * names the tensor. One at a time may: another partial one is CANARY_INVALID_ARGUMENT, one of the group waits. */
CANARY_API enum canary_status canary_partial_all_reduce_with(canary_group* group, const canary_partial* among,
                                                             const void* input, void* output, size_t count,
                                                             enum canary_type type, enum canary_redop redop,
                                                             const canary_op_options* options, canary_op** op);

/* Sessions: training with bounded staleness. The workers of a group exchange gradients in rounds, each an all_reduce of
 * one colayer (layers whose gradients travel together) that every rank's library joins at once, with what its worker
 * has pushed or with nothing, while the worker computes. A step hands out the sum of what has arrived; it is to be
 * scaled by 1/ranks. docs/sync.md tells how to choose thresholds. A session is alive as long as all its members are: a
 * dead one, or one that leaves or closes it before all have finished, ends it for everybody with an error that names
 * it. With CANARY_AT_DEATH_GO_ON the others go on without one that dies or leaves: they agree on the last rounds that
 * count, so that all of them are handed the same, and no gradient of theirs is lost or summed twice; of the dead one
 * counts what a survivor had been handed. Ranks of one process die and leave together. The group and its operations do
 * not wait for a session. */
typedef struct canary_session canary_session;
#define CANARY_STALENESS_UNBOUNDED ((int64_t)-1)
#define CANARY_LINGER_USUAL ((int64_t)-1)
typedef struct canary_session_options {
  size_t struct_size;   /* sizeof(canary_session_options) */
  uint64_t number;      /* of this session, on which its members agree; a group takes each number once */
  const size_t* counts; /* f32 elements of each colayer, in the order in which backward makes them; equal everywhere */
  int colayers;         /* how many: 1 to 256 */
  /* The rule, for this worker alone; canary_session_set changes it. A worker that is more than `staleness` iterations
   * behind, with fewer than `proportion` colayers of its iteration exchanged, is overtime. BSP: wait, 0; SSP: wait and
   * a bound; ASP: drop and CANARY_STALENESS_UNBOUNDED; Canary: drop and a bound. */
  int at_bound;          /* an enum canary_at_bound */
  int64_t staleness;     /* iterations */
  int64_t staleness_max; /* how far canary_session_set may raise the bound; at least the bound itself */
  int proportion;        /* colayers; -1: all. Counts where at_bound is drop. */
  int backlog;    /* results of a colayer that are kept apart until they are taken: 2 to 64. Each takes memory. */
  int64_t linger; /* nanoseconds that a gradient waits for another's round before it opens one */
  /* Codecs (canary_codec), by which gradients travel in fewer bytes and with less precision; all workers give the same
   * ones. All but choices (auto), artopk, agtopk, power and svd. What a codec leaves out on this rank stays here and
   * goes with this worker's next gradient of the colayer (error feedback), so it is late, not lost; what is left out at
   * the end of the session is lost. Who contributed what is exact. docs/sync.md tells more. */
  uint32_t codec;         /* of all colayers; 0: none */
  uint32_t reserved;      /* 0 */
  const uint32_t* codecs; /* one for each colayer, in place of `codec`; NULL: that one counts for all */
  int at_death;           /* an enum canary_at_death, equal for all workers */
  int reserved_2;         /* 0 */
  /* Where at_bound is wait, part of the rule: `quorum` percent of the living workers are enough for a step, once the
   * others are later than workers usually are, which is learnt from the gradients before. What comes late is summed in
   * a later round, and its worker goes on with the newest iteration (docs/sync.md). 100: all are waited for. */
  int quorum;
  int absences; /* so many steps in a row go on without the same worker, then it is waited for: 1 to 2^20 */
} canary_session_options;
#define CANARY_SESSION_OPTIONS_INIT                                                                                  \
  {                                                                                                                  \
    sizeof(canary_session_options), 0, NULL, 0, CANARY_AT_BOUND_DROP, 18, 0, -1, 2, CANARY_LINGER_USUAL, 0, 0, NULL, \
        CANARY_AT_DEATH_END, 0, 100, 18                                                                              \
  }
/* Sets at_bound, staleness, proportion, linger, quorum and absences to the rule of this name: "bsp", "ssp:3", "asp",
 * "canary:s=18,p=6", each with ",linger=5ms" if wanted, and "bsp:quorum=75" (docs/sync.md has the names). Pure: needs
 * no context. CANARY_INVALID_ARGUMENT says what is wrong with the text; policies that are no sessions ("esync") are
 * refused, too. */
CANARY_API enum canary_status canary_session_rule(const char* name, canary_session_options* options);
/* What a step has handed out. Begin with CANARY_SESSION_RESULT_INIT. */
typedef struct canary_session_result {
  size_t struct_size; /* sizeof(canary_session_result) */
  int64_t iteration;  /* that this worker is in now, from 1; with a quorum numbers may be left out */
  int64_t newest;     /* that any worker is known to have entered */
  int64_t oldest;     /* iteration among the gradients in the sums; 0: there are none */
  uint64_t gradients; /* in the sums, one per worker, iteration and colayer */
  uint64_t rounds;    /* whose results are in the sums, of all colayers */
  uint64_t dropped;   /* of this worker's gradients, since the opening */
  uint64_t overtime;  /* 1: nothing was handed out: the worker is too far behind, and has to pull */
} canary_session_result;
#define CANARY_SESSION_RESULT_INIT \
  { sizeof(canary_session_result), 0, 0, 0, 0, 0, 0, 0 }
/* Which tensors of a model make a colayer: those that the merge planner (as bundles have it) would send together, since
 * a message costs a start-up time whatever its size. `counts` are the f32 elements of each tensor, `ready` the seconds
 * from the beginning of an iteration until its gradient is there, as the program has measured them, both in the order
 * in which backward makes them; there are `tensors`, 1 to CANARY_SESSION_TENSORS_MAX. All members call it with equal
 * counts (else CANARY_MISMATCH, on all of them, and the group lives on); the slowest member's times count. It measures
 * a few all_reduces of the group, of 256 KiB to 16 MiB, and blocks until all are through. `ends` has room for `tensors`
 * numbers: for each colayer how many tensors are in it and in those before it, equal on all members; *colayers is how
 * many there are, at most 256. */
#define CANARY_SESSION_TENSORS_MAX 4096
CANARY_API enum canary_status canary_session_colayers(canary_group* group, const size_t* counts, const double* ready,
                                                      size_t tensors, size_t* ends, int* colayers);
/* Blocks until all members have opened it, for at most CANARY_ENTRY_LIMIT: members with another number are not there
 * (CANARY_ENTRY_TIMEOUT), and layouts, codecs or at_death that differ are CANARY_MISMATCH. It takes 2 + backlog times
 * the memory of the colayers (once more with a codec, and once or with a codec twice more where it goes on after
 * deaths) and of 16 bytes per rank and colayer, and an index of a bit per rank, colayer and row (2 x staleness_max + 2
 * rows or so). */
CANARY_API enum canary_status canary_session_open(canary_group* group, const canary_session_options* options,
                                                  canary_session** session);
/* Colayer `colayer` of this iteration's gradient, `count` elements; once per iteration and colayer. It is added to what
 * waits here, so the buffer is the caller's again when the call returns. Of a worker that is overtime it is dropped.
 * With a codec (but one with ",or-dense") an element that is NaN or infinite, or becomes so with what waits, is
 * refused: CANARY_INVALID_ARGUMENT names colayer and element, nothing has changed, and another one may be pushed.
 * Should the sum of several workers' gradients be infinite, the session ends for all, who are told the same. */
CANARY_API enum canary_status canary_session_push(canary_session* session, int colayer, const float* gradient,
                                                  size_t count);
/* Ends the iteration, after every colayer was pushed. `sums` has room for all colayers, one behind the other: `count`
 * elements. Where at_bound is drop it never waits; else it may, until others have caught up: for each as long as that
 * one goes on, and CANARY_ENTRY_LIMIT after its last gradient (CANARY_ENTRY_TIMEOUT). With `op` it returns at once, and
 * sums and result are lent until the operation is done; past a deadline (canary_op_set_deadline) the step is to be made
 * again, and the session goes on. */
CANARY_API enum canary_status canary_session_step(canary_session* session, float* sums, size_t count,
                                                  canary_session_result* result, canary_op** op);
/* Hands out all rounds that are exchanged, and goes on with the newest iteration: what this worker has pushed and is
 * not on its way is dropped. It never waits. Rounds are the same everywhere: who applies all of them has the parameters
 * of the fastest worker. */
CANARY_API enum canary_status canary_session_pull(canary_session* session, float* sums, size_t count,
                                                  canary_session_result* result, canary_op** op);
/* This worker pushes no more. Waits for all others to say so (each for at most CANARY_ENTRY_LIMIT), and hands out what
 * is left: afterwards all workers have been handed the same gradients. */
CANARY_API enum canary_status canary_session_finish(canary_session* session, float* sums, size_t count,
                                                    canary_session_result* result, canary_op** op);
/* Takes at_bound, staleness, proportion, linger, quorum and absences of `options` from now on, for this worker. */
CANARY_API enum canary_status canary_session_set(canary_session* session, const canary_session_options* options);
/* What is known here. */
typedef struct canary_session_state {
  size_t struct_size; /* sizeof(canary_session_state) */
  int64_t iteration;  /* of this worker */
  int64_t newest;     /* of any worker, as far as known; newest - iteration is this worker's staleness */
  int64_t oldest_row; /* of the index of gradients: rows oldest_row (or 1) to newest can be read */
  int32_t proportion; /* colayers of this iteration whose own gradient has been exchanged */
  int32_t overtime;   /* 1: this worker has to pull */
  uint64_t rounds;    /* exchanged, of all colayers */
  uint64_t dropped;   /* of this worker's gradients */
  uint64_t bytes;     /* that the session's buffers take */
  int32_t workers;    /* that are not known to be dead */
  int32_t reserved;
  uint64_t went_on;  /* steps of this worker that went on without somebody who was late */
  uint64_t was_late; /* its steps that ended after others had gone on without it */
} canary_session_state;
CANARY_API enum canary_status canary_session_read(canary_session* session, canary_session_state* state);
/* A row of the index: the members whose gradient of this iteration and colayer has been exchanged, rank r as bit r % 64
 * of bits[r / 64]. `words` is the room at `bits`. CANARY_INVALID_ARGUMENT: there is no such row (any more). */
CANARY_API enum canary_status canary_session_row(canary_session* session, int64_t iteration, int colayer,
                                                 uint64_t* bits, size_t words);
/* The matrix of the index at one moment: the rows of iterations `first` to `last` and of all colayers, in this order:
 * (last - first + 1) x colayers x words of a row. */
CANARY_API enum canary_status canary_session_rows(canary_session* session, int64_t first, int64_t last, uint64_t* bits,
                                                  size_t words);
/* Frees it on this rank. Before all have finished it ends the session for everybody (CANARY_ABORTED). */
CANARY_API enum canary_status canary_session_close(canary_session* session);

/* Messages between two ranks of a group. The k-th send from one rank to another meets the k-th receive there from that
 * rank, whatever collectives run beside them; count and type must be equal on both sides. A send is done when the
 * peer's engine has the bytes: a small one may be done before the peer has called canary_recv, a larger one is not.
 * With `op` NULL the call blocks, so two ranks that both send first need handles. `peer` may be the caller's own
 * rank. */
CANARY_API enum canary_status canary_send(canary_group* group, const void* buffer, size_t count, enum canary_type type,
                                          int peer, canary_op** op);
CANARY_API enum canary_status canary_recv(canary_group* group, void* buffer, size_t count, enum canary_type type,
                                          int peer, canary_op** op);

/* The calls above with options; everything said of them holds here as well. With `options` NULL they are the same. */
CANARY_API enum canary_status canary_all_reduce_with(canary_group* group, const void* input, void* output, size_t count,
                                                     enum canary_type type, enum canary_redop redop,
                                                     const canary_op_options* options, canary_op** op);
CANARY_API enum canary_status canary_reduce_scatter_with(canary_group* group, const void* input, void* output,
                                                         size_t count, enum canary_type type, enum canary_redop redop,
                                                         const canary_op_options* options, canary_op** op);
CANARY_API enum canary_status canary_all_gather_with(canary_group* group, const void* input, void* output, size_t count,
                                                     enum canary_type type, const canary_op_options* options,
                                                     canary_op** op);
CANARY_API enum canary_status canary_all_gather_v_with(canary_group* group, const void* input, void* output,
                                                       const size_t* counts, enum canary_type type,
                                                       const canary_op_options* options, canary_op** op);
CANARY_API enum canary_status canary_all_to_all_with(canary_group* group, const void* input, void* output, size_t count,
                                                     enum canary_type type, const canary_op_options* options,
                                                     canary_op** op);
CANARY_API enum canary_status canary_all_to_all_v_with(canary_group* group, const void* input,
                                                       const size_t* send_counts, const size_t* send_displacements,
                                                       void* output, const size_t* receive_counts,
                                                       const size_t* receive_displacements, enum canary_type type,
                                                       const canary_op_options* options, canary_op** op);
CANARY_API enum canary_status canary_broadcast_with(canary_group* group, const void* input, void* output, size_t count,
                                                    enum canary_type type, int root, const canary_op_options* options,
                                                    canary_op** op);
CANARY_API enum canary_status canary_reduce_with(canary_group* group, const void* input, void* output, size_t count,
                                                 enum canary_type type, enum canary_redop redop, int root,
                                                 const canary_op_options* options, canary_op** op);
CANARY_API enum canary_status canary_gather_with(canary_group* group, const void* input, void* output, size_t count,
                                                 enum canary_type type, int root, const canary_op_options* options,
                                                 canary_op** op);
CANARY_API enum canary_status canary_scatter_with(canary_group* group, const void* input, void* output, size_t count,
                                                  enum canary_type type, int root, const canary_op_options* options,
                                                  canary_op** op);
CANARY_API enum canary_status canary_barrier_with(canary_group* group, const canary_op_options* options,
                                                  canary_op** op);
CANARY_API enum canary_status canary_send_with(canary_group* group, const void* buffer, size_t count,
                                               enum canary_type type, int peer, const canary_op_options* options,
                                               canary_op** op);
CANARY_API enum canary_status canary_recv_with(canary_group* group, void* buffer, size_t count, enum canary_type type,
                                               int peer, const canary_op_options* options, canary_op** op);

/* CANARY_WOULD_BLOCK: not finished. Anything else is the operation's result and frees the handle. */
CANARY_API enum canary_status canary_op_test(canary_op* op);
/* Waits for the result and frees the handle. If several threads ask for one operation, one of them gets its
 * result and the others CANARY_INVALID_ARGUMENT. */
CANARY_API enum canary_status canary_op_wait(canary_op* op);
/* Limits an operation to this time, counted from now; past it the operation fails with CANARY_DEADLINE. */
CANARY_API enum canary_status canary_op_set_deadline(canary_op* op, uint64_t nanoseconds);

/* For event loops (poll, epoll, asyncio): *fd becomes readable when operations of this context that have a handle have
 * completed, whatever their results, or when the job is over for this process. It stays readable until
 * canary_context_drain. Each context has one, which the first call makes; it is readable at once if results wait by
 * then. docs/using.md has more.
 * When it is readable, call canary_context_drain, then canary_op_test on every open handle. What completes after the
 * drain makes it readable again, so nothing is missed; it may be readable although nothing is new. An operation may
 * complete before the call that starts it returns, so a thread that hands its handle to another must have it tested
 * there once.
 * Without the library's thread (CANARY_PROGRESS_THREAD=0) it is readable also when the engine has to be driven, and
 * canary_context_drain drives it.
 * Only poll it: do not read, write or close it. It ends with canary_finalize, so take it out of your loop before that
 * (epoll forgets a closed descriptor silently). A forked child has none. */
CANARY_API enum canary_status canary_context_fd(canary_context* context, int* fd);
/* Any thread may call it. It waits only where it drives the engine: then briefly for any other thread that does. */
CANARY_API enum canary_status canary_context_drain(canary_context* context);

/* Memory for buffers: zeroed, page-aligned, `bytes` rounded up to whole pages. Data that is sent from it to ranks on
 * this host goes by reference instead of being copied. It may be used like any other memory, also for operations with
 * ranks elsewhere. It is meant for few large blocks (at most 256 at a time). A forked child shares it with its parent.
 * It ends with canary_mem_free (no operation that uses it may be pending) or canary_finalize. */
CANARY_API enum canary_status canary_mem_alloc(canary_context* context, size_t bytes, void** memory);
CANARY_API enum canary_status canary_mem_free(canary_context* context, void* memory);

/* --- Connections without a group -------------------------------------------------------------------------------------
 * An endpoint is an engine of its own beside any job; one per process is enough for all its threads and devices. Two
 * processes meet by a handle of 128 bytes, which one of them makes and gives to the other by its own means. A
 * connection carries ordered messages both ways, spread over every pair of NICs that meet; it survives the loss of any
 * NIC but the last. docs/messages.md describes the protocol.
 * Threads: any thread may call, but only one thread at a time may use a listener, or a connection with its requests: a
 *   second one gets CANARY_INVALID_ARGUMENT. The endpoint's own thread does all I/O, none happens inside these calls.
 *   Two kinds of calls may wait: canary_endpoint_create, and closing what has requests in flight, for some
 *   milliseconds; canary_endpoint_destroy, for at most about half a second, until peers have heard that connections
 *   were closed.
 * Failures: a peer that dies ends its connections within CANARY_SILENCE_LIMIT. Every request then names the peer and
 *   the links, and says how many bytes were outstanding and how long the peer has been silent. */
typedef struct canary_endpoint canary_endpoint;
typedef struct canary_listener canary_listener;
typedef struct canary_connection canary_connection;
typedef struct canary_registration canary_registration; /* memory that messages will use */
typedef struct canary_request canary_request;           /* a message in flight */
#define CANARY_HANDLE_BYTES 128
#define CANARY_RECEIVES_MAX 8 /* in one grouped receive */

/* A NIC as an endpoint uses it. */
typedef struct canary_rail {
  char device[32];
  char address[64];    /* "10.0.0.1" */
  uint64_t speed_mbit; /* of its link, as its driver or CANARY_PACING_RATE says; 0: unknown */
} canary_rail;
/* The NICs that an endpoint made now with `config` would use. The call opens nothing, and fails where making the
 * endpoint would be refused (settings, addresses beyond loopback). It fills at most `capacity` entries and sets *count
 * to the number of NICs. */
CANARY_API enum canary_status canary_list_nics(const canary_config* config, canary_rail* rails, size_t capacity,
                                               size_t* count);
/* The value that a setting (docs/settings.md, by either name) has with `config`: nanoseconds, bytes, a number, or 0 and
 * 1. Settings that are texts have none. */
CANARY_API enum canary_status canary_get_setting(const canary_config* config, const char* name, int64_t* value);

/* Listens on every NIC and starts a thread. Only the settings of `config` count; NULL: all from the environment. */
CANARY_API enum canary_status canary_endpoint_create(const canary_config* config, canary_endpoint** endpoint);
/* Closes and frees everything made from the endpoint: those handles end. No other thread may be in a call meanwhile. */
CANARY_API enum canary_status canary_endpoint_destroy(canary_endpoint* endpoint);

/* Fills at most `capacity` entries, sets *count to the number of NICs. They stay the same for the endpoint's life. */
CANARY_API enum canary_status canary_endpoint_rails(canary_endpoint* endpoint, canary_rail* rails, size_t capacity,
                                                    size_t* count);
struct canary_nic_stats;
/* Like canary_stats: NICs in the order of canary_endpoint_rails, and behind them shared memory (device "shm") once it
 * carries something. Counters run since canary_endpoint_create and include connections that have ended. The call waits
 * for a turn of the endpoint's thread, so keep it off the data path. */
CANARY_API enum canary_status canary_endpoint_stats(canary_endpoint* endpoint, struct canary_nic_stats* nics,
                                                    size_t capacity, size_t* count);

/* For event loops, like canary_context_fd: *fd becomes readable when something of this endpoint has completed, whatever
 * its result: a request, a canary_connect, or a connection that canary_accept can return. It stays so until
 * canary_endpoint_drain, and is readable at first. When it is readable, call canary_endpoint_drain, then canary_test
 * and canary_connect on what is open, and canary_accept until it returns CANARY_WOULD_BLOCK, since one wake-up may
 * stand for several connections. Each endpoint has one, which the first call makes. Only poll it; it ends with
 * canary_endpoint_destroy. */
CANARY_API enum canary_status canary_endpoint_fd(canary_endpoint* endpoint, int* fd);
CANARY_API enum canary_status canary_endpoint_drain(canary_endpoint* endpoint);

/* Fills CANARY_HANDLE_BYTES at `handle`, which other processes may give to canary_connect, any number of times. */
CANARY_API enum canary_status canary_listen(canary_endpoint* endpoint, void* handle, canary_listener** listener);
/* Like canary_listen, with a handle of `handle_bytes`, CANARY_HANDLE_BYTES_MIN or more: the caller then has room for
 * data of its own. NICs that do not fit in are left out; each takes 7 bytes (19 with IPv6). Pad the handle with zeroes
 * to CANARY_HANDLE_BYTES before giving it to canary_connect. */
#define CANARY_HANDLE_BYTES_MIN 64
CANARY_API enum canary_status canary_listen_short(canary_endpoint* endpoint, void* handle, size_t handle_bytes,
                                                  canary_listener** listener);
/* Connections that were accepted live on; other connections made to the listener end. */
CANARY_API enum canary_status canary_close_listener(canary_listener* listener);
/* Call it with *connection NULL, then again with the same connection and endpoint until it returns something other than
 * CANARY_WOULD_BLOCK. CANARY_OK does not wait for the peer's canary_accept. After a failure *connection is NULL again.
 * Bytes that are no handle, or another version's, are refused at once. */
CANARY_API enum canary_status canary_connect(canary_endpoint* endpoint, const void* handle,
                                             canary_connection** connection);
/* CANARY_WOULD_BLOCK: nobody has connected yet. */
CANARY_API enum canary_status canary_accept(canary_listener* listener, canary_connection** connection);
/* What was done stays done: the peer has every message for which canary_test said so. Requests in flight are freed and
 * their buffers are the caller's again; the peer's requests get CANARY_CLOSED. */
CANARY_API enum canary_status canary_close(canary_connection* connection);
/* Gives a connection up: its requests, here and at the peer, and all later ones end with CANARY_ABORTED and `why` (at
 * most 512 bytes of UTF-8 reach the peer). Any thread may call it, also beside every other call of the
 * connection; it does not wait. The first reason counts. */
CANARY_API enum canary_status canary_abort_connection(canary_connection* connection, const char* why);

/* Announces memory. Messages may use any memory; one that names a registration has its bounds checked (and spares work
 * on transports that pin memory). */
CANARY_API enum canary_status canary_register(canary_endpoint* endpoint, void* data, size_t bytes,
                                              canary_registration** registration);
CANARY_API enum canary_status canary_deregister(canary_registration* registration);

/* The k-th message sent meets the k-th receive of the other end. CANARY_WOULD_BLOCK with *request NULL says that there
 * is no room for it now: try again. The send is done when the peer has acknowledged every byte. `registration` may be
 * NULL. */
CANARY_API enum canary_status canary_isend(canary_connection* connection, const void* data, size_t bytes, uint32_t tag,
                                           canary_registration* registration, canary_request** request);
/* Posts `count` (1 to CANARY_RECEIVES_MAX) receives as one request; `bytes` are upper bounds. With several, the next
 * `count` messages fill the entries of their tags (equal tags: in order); with one, tags do not matter. Entries must
 * not overlap. A message longer than its entry ends the connection with CANARY_MISMATCH on both sides. `tags` and
 * `registrations` may be NULL. */
CANARY_API enum canary_status canary_irecv(canary_connection* connection, int count, void* const* data,
                                           const size_t* bytes, const uint32_t* tags,
                                           canary_registration* const* registrations, canary_request** request);
/* The same calls with options, or without if `options` is NULL. An urgent message overtakes those of its connection
 * that are not urgent, unless they have its tag: messages of one tag keep their order. A deadline that passes gives the
 * connection up: its requests end with CANARY_DEADLINE here, and with CANARY_ABORTED at the peer. */
CANARY_API enum canary_status canary_isend_with(canary_connection* connection, const void* data, size_t bytes,
                                                uint32_t tag, canary_registration* registration,
                                                const canary_op_options* options, canary_request** request);
CANARY_API enum canary_status canary_irecv_with(canary_connection* connection, int count, void* const* data,
                                                const size_t* bytes, const uint32_t* tags,
                                                canary_registration* const* registrations,
                                                const canary_op_options* options, canary_request** request);
/* Returns CANARY_WOULD_BLOCK, or the result, which frees the request. `bytes` (may be NULL) then has the message's
 * length, or one length for each entry of a grouped receive. While the request is not done a call costs a few loads. */
CANARY_API enum canary_status canary_test(canary_request* request, size_t* bytes);

/* The last failure in this thread. Its strings live until the thread's next failing call. */
typedef struct canary_error {
  size_t struct_size; /* set to sizeof(canary_error) by the caller */
  enum canary_status code;
  const char* message; /* the whole sentence */
  const char* op;      /* "all_reduce" or "" */
  int64_t op_number;   /* in its group, from 1; -1: none */
  uint32_t group;      /* flow number of the group; 1: the world, 0: none */
  uint32_t epoch;
  int rank;           /* culprit's world rank; -1: unknown */
  const char* host;   /* culprit's host, or "" */
  const char* device; /* NICs concerned, or "" */
  const char* phase;  /* "join", "entry", "exchange" or "" */
  uint64_t elapsed_ns;
} canary_error;
CANARY_API enum canary_status canary_last_error(canary_error* error);
/* "MISMATCH" for CANARY_MISMATCH. */
CANARY_API const char* canary_status_name(enum canary_status status);

/* Counters of one NIC since canary_init; several local ranks see the same counters, those of their engine. Ranks reach
 * peers on this host through shared memory (docs/settings.md, CANARY_TRANSPORTS): it is listed behind the NICs as
 * device "shm". Its bytes cross no NIC, and no kernel counter has them. */
typedef struct canary_nic_stats {
  char device[32];
  uint64_t transmit_bytes; /* handed to the NIC by Canary, headers included */
  uint64_t receive_bytes;
  uint64_t piece_retransmits; /* pieces sent again, for any reason */
  uint64_t piece_crc_errors;
  uint64_t failovers;             /* times a lane on this NIC was given up */
  uint64_t kernel_transmit_bytes; /* the kernel's own counter of the device, since boot */
  uint64_t rate_bytes_per_second; /* measured delivery rate, sum over lanes; 0 = not measured yet */
  uint32_t lanes_up;
  uint32_t reserved;
} canary_nic_stats;
/* Fills at most `capacity` entries, sets *count to the number of NICs. */
CANARY_API enum canary_status canary_stats(canary_context* context, canary_nic_stats* nics, size_t capacity,
                                           size_t* count);
/* What is known of one link: a path from a NIC of this process to one of a peer, in that direction. Links to ranks on
 * this host are those of shared memory (device "shm"). Zero stands for what is not known yet. */
typedef struct canary_link_stats {
  size_t struct_size;             /* sizeof(canary_link_stats) */
  char host[64];                  /* the peer's host name */
  char device[32];                /* this end's NIC */
  char remote_device[32];         /* the peer's */
  int32_t rank;                   /* the lowest of the world ranks that the peer's process serves */
  uint32_t lane;                  /* number of the connection between the two NICs, from 0 */
  uint64_t alpha_ns;              /* how long a byte takes that meets no queue, one way: half the least round trip */
  uint64_t beta_bytes_per_second; /* what the link delivers while it is busy */
  uint64_t jitter_ns;             /* mean difference of two round trips in a row that met no queue */
  uint64_t losses;                /* frames taken for lost */
  uint64_t transmit_bytes;        /* sent over the link, headers included */
  double share;                   /* this link's part of all bytes sent to the peer's process, 0 to 1 */
  uint64_t age_ns;                /* since alpha or beta was last measured; UINT64_MAX: never */
  uint32_t up;                    /* 1: pieces may go over it */
  uint32_t reserved;
} canary_link_stats;
/* Fills at most `capacity` entries and sets *count to the number of links, peer by peer. links[0].struct_size says how
 * large every entry of the array is; it is set in all that are filled, and fields that this library does not know are
 * zeroed. With `capacity` 0, `links` may be NULL. Any thread may call it at any time; it waits for the thread that
 * drives the engine, so keep it off the data path. docs/using.md has more. */
CANARY_API enum canary_status canary_links(canary_context* context, canary_link_stats* links, size_t capacity,
                                           size_t* count);
/* Name of the algorithm that the last completed operation of the group ran ("ring"); "" before the first. */
CANARY_API const char* canary_group_algorithm(const canary_group* group);
/* Writes into `text`, which has room for `size` bytes, why an operation of the group runs by the algorithm that it
 * does: what is chosen and by what (a user's rule, a measured table, size and topology), how long it and the next best
 * are expected to take, whether it is only on trial or why it stays, and how long operations took since, and before by
 * others. `collective` is a name as CANARY_ALGO has it ("all_reduce"), `bytes` the longer one of a rank's two buffers.
 * A longer text is cut; it always ends with a zero. For people: the words may change. CANARY_INVALID_ARGUMENT: there is
 * no such collective. */
CANARY_API enum canary_status canary_explain(const canary_group* group, const char* collective, uint64_t bytes,
                                             char* text, size_t size);

/* Hands the log lines of the library up to `level` (1 error, 2 warning, 3 info, 4 debug) to `fn`; NULL, as from the
 * start: to nobody. Any thread may call `fn`, and several at once. This call may come at any time, and returns when no
 * thread is in the function that it replaces. Calls of the library within `fn` give CANARY_INVALID_ARGUMENT, or do
 * nothing. */
typedef void (*canary_log_fn)(void* user, int level, const char* line, size_t length);
CANARY_API void canary_set_log(canary_log_fn fn, void* user, int level);

/* "0.1.0". */
CANARY_API const char* canary_version(void);

#ifdef __cplusplus
}
#endif

#include "canarynet/bundle.h"
#include "canarynet/policy.h"
#include "canarynet/ratio.h"

#endif
