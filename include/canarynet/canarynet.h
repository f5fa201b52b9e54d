/* canarynet/canarynet.h -- the C ABI of libcanarynet. C99. It declares only what works.
 *
 * What: a process joins a job as one rank (canary_init), forms groups of ranks and runs collectives over all NICs at once.
 * Shapes and units: counts are elements of the given type; buffers are contiguous; times are nanoseconds.
 * Ownership: buffers handed to an operation are borrowed until it completed (canary_op_wait, or canary_op_test saying so): do not
 *   write them, do not read the output. Handles belong to the library and end with their destroy call or canary_finalize.
 * Threads: every call may come from any thread; operations of one group are numbered in the order of the calls, so all ranks must call them
 *   in the same order (with several threads: order them yourself). A thread in canary_op_wait drives the engine itself.
 * Failures: every call returns a canary_status; canary_last_error() has the details for the calling thread. An operation that fails
 *   ends its group: every pending and later operation of that group gives the same verdict. Nothing hangs: the entry and exchange
 *   limits (docs/settings.md) bound every wait. The library prints nothing and installs no signal handler.
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

/* By which the ranks of a job find each other: plain bytes, carried by whatever the application has (a file, MPI, a store). */
#define CANARY_UNIQUE_ID_BYTES 128
typedef struct canary_unique_id {
  uint8_t bytes[CANARY_UNIQUE_ID_BYTES];
} canary_unique_id;

/* How to join. Zero-initialise, set struct_size, fill what differs from the environment. */
typedef struct canary_config {
  size_t struct_size; /* sizeof(canary_config) */
  const char*
      join; /* "tcp://host:port" where rank 0 listens; NULL: $CANARY_JOIN, or the launcher's. Needless when world_size is 1. */
  int rank;                    /* -1: $CANARY_RANK, or the launcher's (torchrun, Open MPI, SLURM) */
  int world_size;              /* 0: $CANARY_WORLD_SIZE, or the launcher's */
  const char* const* settings; /* "name=value" strings (docs/settings.md), over the environment; may be NULL */
  size_t settings_count;
  const canary_unique_id* unique_id; /* of canary_get_unique_id, instead of `join`; NULL: none. Read within the call. */
} canary_config;
#define CANARY_CONFIG_INIT \
  { sizeof(canary_config), NULL, -1, 0, NULL, 0, NULL }

/* Makes an id for one job and starts to listen for its ranks at once, on this host's NICs (CANARY_RAILS or CANARY_SOCKET_IFNAME choose the
 * first ones), or on loopback alone unless CANARY_INSECURE=1. To be called by the process that will be rank 0, before its canary_init;
 * all ranks then pass the same bytes in canary_config, or as CANARY_JOIN=id:HEX. Ranks with another id are turned away. */
CANARY_API enum canary_status canary_get_unique_id(canary_unique_id* id);

/* Joins: blocks until all ranks are there or the join time-out passed. `config` may be NULL (everything from the environment). */
CANARY_API enum canary_status canary_init(const canary_config* config, canary_context** context);
/* Leaves and frees the context, its groups and operations. Peers see a farewell, not a death. Blocks at most about a second. */
CANARY_API enum canary_status canary_finalize(canary_context* context);

CANARY_API int canary_rank(const canary_context* context);
CANARY_API int canary_world_size(const canary_context* context);

/* The group of all ranks; exists from canary_init on. Not to be destroyed. */
CANARY_API canary_group* canary_world(canary_context* context);
/* Forms a group of `count` distinct world ranks in the given order (the index is the rank in the group). Only members call, all with the same
 * list. Blocks until all have. */
CANARY_API enum canary_status canary_group_create(canary_context* context, const int* ranks, int count,
                                                  canary_group** group);
/* Ends the group for all members: pending and later operations give CANARY_ABORTED with this text on every rank. */
CANARY_API enum canary_status canary_group_abort(canary_group* group, const char* reason);
/* Frees the handle; no operation of it may be pending. Local. */
CANARY_API enum canary_status canary_group_destroy(canary_group* group);
CANARY_API int canary_group_rank(const canary_group* group);
CANARY_API int canary_group_size(const canary_group* group);

/* Collectives. With `op` NULL the call blocks until completion; else it returns at once with a handle for test/wait.
 * input == output is allowed (in place); for reduce_scatter and scatter in place is output == input + rank * count elements (scatter: at the
 * root only), for all_gather and gather input == output + rank * count elements (gather: at the root only). Other overlaps are not
 * allowed, and none at all for all_to_all and all_to_all_v. A root is a rank in the group. Lists of counts and displacements have one
 * number per rank of the group, are elements, and are borrowed for the call only. */

/* output[i] = reduction over ranks of input[i], i < count. Bit-identical on all ranks. */
CANARY_API enum canary_status canary_all_reduce(canary_group* group, const void* input, void* output, size_t count,
                                                enum canary_type type, enum canary_redop redop, canary_op** op);
/* input: size * count elements; output: count elements, the reduction of everybody's block `rank`. */
CANARY_API enum canary_status canary_reduce_scatter(canary_group* group, const void* input, void* output, size_t count,
                                                    enum canary_type type, enum canary_redop redop, canary_op** op);
/* input: count elements; output: size * count elements, block i from rank i. */
CANARY_API enum canary_status canary_all_gather(canary_group* group, const void* input, void* output, size_t count,
                                                enum canary_type type, canary_op** op);
/* As all_gather, with counts[i] elements from rank i; they must be equal on all ranks. input: counts[rank] elements; output: all blocks,
 * one behind the other: block i begins at counts[0] + ... + counts[i-1]. In place: input == output + that of the own rank. */
CANARY_API enum canary_status canary_all_gather_v(canary_group* group, const void* input, void* output,
                                                  const size_t* counts, enum canary_type type, canary_op** op);
/* input and output: size * count elements; block j of the input goes to rank j, block i of the output comes from rank i. */
CANARY_API enum canary_status canary_all_to_all(canary_group* group, const void* input, void* output, size_t count,
                                                enum canary_type type, canary_op** op);
/* send_counts[j] elements from input + send_displacements[j] go to rank j; receive_counts[i] from rank i go to output +
 * receive_displacements[i], and must be what rank i sends here: else CANARY_MISMATCH at both, and at all others at the latest with
 * their next call. Displacements may be NULL: one block behind the other. What is received must not overlap. Completes when the
 * arguments of all ranks have been compared with the own ones. */
CANARY_API enum canary_status canary_all_to_all_v(canary_group* group, const void* input, const size_t* send_counts,
                                                  const size_t* send_displacements, void* output,
                                                  const size_t* receive_counts, const size_t* receive_displacements,
                                                  enum canary_type type, canary_op** op);
/* output[i] on every rank = input[i] of `root` (rank in the group); input is read at the root only. */
CANARY_API enum canary_status canary_broadcast(canary_group* group, const void* input, void* output, size_t count,
                                               enum canary_type type, int root, canary_op** op);
/* output[i] at `root` = reduction over ranks of input[i], i < count; elsewhere output is not touched and may be NULL. */
CANARY_API enum canary_status canary_reduce(canary_group* group, const void* input, void* output, size_t count,
                                            enum canary_type type, enum canary_redop redop, int root, canary_op** op);
/* input: count elements; output at `root`: size * count elements, block i from rank i; elsewhere not touched, may be NULL. */
CANARY_API enum canary_status canary_gather(canary_group* group, const void* input, void* output, size_t count,
                                            enum canary_type type, int root, canary_op** op);
/* input at `root`: size * count elements, elsewhere not read, may be NULL; output: count elements, the root's block `rank`. */
CANARY_API enum canary_status canary_scatter(canary_group* group, const void* input, void* output, size_t count,
                                             enum canary_type type, int root, canary_op** op);
/* Completes on a rank after every rank has called it. */
CANARY_API enum canary_status canary_barrier(canary_group* group, canary_op** op);

/* CANARY_WOULD_BLOCK: not finished. Anything else is the operation's result and frees the handle. */
CANARY_API enum canary_status canary_op_test(canary_op* op);
/* Waits for the result and frees the handle. */
CANARY_API enum canary_status canary_op_wait(canary_op* op);
/* Sets an absolute limit for an operation, counted from now; past it the operation fails with CANARY_DEADLINE. */
CANARY_API enum canary_status canary_op_set_deadline(canary_op* op, uint64_t nanoseconds);

/* Memory for buffers: zeroed, page-aligned, `bytes` rounded up to whole pages. What ranks on this host are sent from it goes by reference
 * instead of being copied; it may be used like any other memory, also for operations with ranks elsewhere. For few large blocks (at most
 * 256 at a time). A forked child shares it with its parent. Ends with canary_mem_free (no operation that uses it may be pending) or
 * canary_finalize. */
CANARY_API enum canary_status canary_mem_alloc(canary_context* context, size_t bytes, void** memory);
CANARY_API enum canary_status canary_mem_free(canary_context* context, void* memory);

/* What went wrong last in this thread. Strings live until the thread's next failing call. */
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

/* Counters of one NIC since canary_init. Peers on this host are met through shared memory (docs/settings.md, CANARY_TRANSPORTS): it is
 * listed behind the NICs as device "shm", whose bytes cross none and are counted by no kernel. */
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
/* Name of the algorithm that the last completed operation of the group ran ("ring"); "" before the first. */
CANARY_API const char* canary_group_algorithm(const canary_group* group);

/* Log lines of the library; none by default. Set before canary_init. level: 1 error, 2 warning, 3 info, 4 debug. */
typedef void (*canary_log_fn)(void* user, int level, const char* line, size_t length);
CANARY_API void canary_set_log(canary_log_fn fn, void* user, int level);

/* "0.1.0". */
CANARY_API const char* canary_version(void);

#ifdef __cplusplus
}
#endif
#endif
