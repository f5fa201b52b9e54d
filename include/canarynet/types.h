/* canarynet/types.h -- the enums of the C ABI, shared by every layer. C99. */
#ifndef CANARYNET_TYPES_H
#define CANARYNET_TYPES_H

#ifdef __cplusplus
extern "C" {
#endif

/* The result of a call or an operation. 0 is success; WOULD_BLOCK is a value, not a failure. */
enum canary_status {
  CANARY_OK = 0,
  CANARY_WOULD_BLOCK = 1,       /* not finished yet: ask again */
  CANARY_INVALID_ARGUMENT = 2,  /* a caller's value is out of range; nothing was done */
  CANARY_INVALID_SETTING = 3,   /* an environment variable or file setting is wrong */
  CANARY_INSECURE = 4,          /* a non-loopback address without a key and without CANARY_INSECURE=1 */
  CANARY_SYSTEM = 5,            /* the operating system refused something (errno is in the text) */
  CANARY_LIMIT = 6,             /* a bounded resource is used up; the text names it and its limit */
  CANARY_VERSION = 7,           /* the peer speaks another protocol version */
  CANARY_JOIN = 8,              /* joining failed: missing or duplicate ranks, sizes that differ */
  CANARY_MISMATCH = 9,          /* ranks called different operations or with different arguments or settings */
  CANARY_UNREACHABLE = 10,      /* the chosen schedule needs ranks to meet that share no rail */
  CANARY_NO_PATH = 11,          /* every lane to a live peer is silent */
  CANARY_PEER_DIED = 12,        /* a peer's process ended (its connection was closed or reset) */
  CANARY_PEER_SILENT = 13,      /* a peer was not heard on any lane nor on control */
  CANARY_COORDINATOR_LOST = 14, /* nobody coordinates: the rank that did is silent, or the join lost it */
  CANARY_PARTITIONED = 15,      /* this side can't reach enough of the group */
  CANARY_ENTRY_TIMEOUT = 16,    /* a rank is alive but did not call the operation in time */
  CANARY_EXCHANGE_TIMEOUT = 17, /* no progress within the exchange limit */
  CANARY_DEADLINE = 18,         /* the caller's own deadline passed */
  CANARY_ABORTED = 19,          /* a rank called canary_group_abort, or either end canary_abort_connection */
  CANARY_CLOSED = 20,           /* the context was finalized, or the connection closed, here or by the peer */
  CANARY_INTERNAL = 21          /* a bug in Canary */
};

/* What happens to a worker of a session that is too far behind. */
enum canary_at_bound {
  CANARY_AT_BOUND_DROP = 0, /* its gradients are dropped, and it pulls */
  CANARY_AT_BOUND_WAIT = 1  /* nobody gets so far ahead: a step waits */
};

/* What becomes of a session when one of its workers dies. */
enum canary_at_death {
  CANARY_AT_DEATH_END = 0,  /* it ends for everybody, who are told who died */
  CANARY_AT_DEATH_GO_ON = 1 /* the others go on without it */
};

/* Element types. f16 is IEEE binary16, bf16 the upper half of binary32. */
enum canary_type {
  CANARY_F32 = 0,
  CANARY_F64 = 1,
  CANARY_F16 = 2,
  CANARY_BF16 = 3,
  CANARY_I8 = 4,
  CANARY_U8 = 5,
  CANARY_I32 = 6,
  CANARY_I64 = 7
};

/* Reductions. Integers wrap; AVG divides the sum once, at the rank that finishes it (integers truncate toward zero);
 * f16 and bf16 round after each addition; MIN and MAX return NaN when any operand is NaN. */
enum canary_redop { CANARY_SUM = 0, CANARY_AVG = 1, CANARY_MIN = 2, CANARY_MAX = 3, CANARY_PROD = 4 };

/* The order in which one process sends what its operations have to send. */
enum canary_priority {
  CANARY_PRIORITY_NORMAL = 0,
  CANARY_PRIORITY_URGENT = 1 /* its pieces overtake those of everything that is not urgent */
};

#ifdef __cplusplus
}
#endif
#endif
