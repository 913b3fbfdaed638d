/* netsum for C, and for all languages that call C: one rank's membership in a job, and its collective calls.
 *
 *   netsum_options* options = netsum_options_create();
 *   netsum_options_set(options, "NETSUM_SWITCH", "10.0.0.1:7170");
 *   netsum_communicator* communicator = NULL;
 *   if (netsum_connect(options, "hello", rank, ranks, &communicator) != NETSUM_OK) puts(netsum_last_error());
 *   netsum_all_reduce(communicator, gradients, gradients, length, NETSUM_FLOAT32, NETSUM_SUM, NULL);
 *
 * What a call does, which threads may make it, and how it fails is what netsum/communicator.h says of the method of the same
 * name. A failed call returns its status, sets no output, and leaves its text for netsum_last_error(). No pointer but those
 * said to be optional may be NULL: a call that is given one returns NETSUM_BAD_ARGUMENT.
 *
 * Binary compatibility: a program that was compiled with this header runs with every later libnetsum.so of the same soname.
 * Objects are opaque, numbers of enumerators never change, functions and settings are only added, and netsum_call says its
 * own size.
 */
#ifndef NETSUM_NETSUM_H
#define NETSUM_NETSUM_H

#include <stddef.h>
#include <stdint.h>

#include "netsum/export.h"
#include "netsum/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NETSUM_OK, and the codes of docs/errors.md. Each enumeration has a last enumerator that makes it as wide as int, so that a
 * number of a later version is a value of its type. */
typedef enum netsum_status {
  NETSUM_OK = 0,
  NETSUM_BAD_ARGUMENT = 1,
  NETSUM_UNREACHABLE = 2,
  NETSUM_REFUSED = 3,
  NETSUM_MISMATCH = 4,
  NETSUM_DEADLINE = 5,
  NETSUM_WORKER_LOST = 6,
  NETSUM_AGGREGATOR_LOST = 7,
  NETSUM_AGGREGATOR_RESTARTED = 8,
  NETSUM_CLOSED = 9,
  NETSUM_INTERNAL = 10,
  NETSUM_EXCLUDED = 11,
  NETSUM_STATUS_MAX_ENUM = 0x7fffffff
} netsum_status;

/* Of elements; NETSUM_BOOLEAN is a byte, 0 or 1. */
typedef enum netsum_dtype {
  NETSUM_FLOAT32 = 0,
  NETSUM_INT32 = 1,
  NETSUM_FLOAT16 = 2,
  NETSUM_BFLOAT16 = 3,
  NETSUM_FLOAT64 = 4,
  NETSUM_INT64 = 5,
  NETSUM_INT16 = 6,
  NETSUM_INT8 = 7,
  NETSUM_UINT8 = 8,
  NETSUM_BOOLEAN = 9,
  NETSUM_DTYPE_MAX_ENUM = 0x7fffffff
} netsum_dtype;

typedef enum netsum_op {
  NETSUM_SUM = 0,
  NETSUM_AVG = 1,
  NETSUM_MIN = 2,
  NETSUM_MAX = 3,
  NETSUM_PRODUCT = 4,
  NETSUM_BIT_AND = 5,
  NETSUM_BIT_OR = 6,
  NETSUM_BIT_XOR = 7,
  NETSUM_OP_MAX_ENUM = 0x7fffffff
} netsum_op;

typedef struct netsum_options netsum_options;
typedef struct netsum_communicator netsum_communicator;
typedef struct netsum_work netsum_work;

/* What one call may differ in. Begin with NETSUM_CALL_INIT; a NULL in its place is the same. */
typedef struct netsum_call {
  size_t size;             /* sizeof(netsum_call), as the program was compiled */
  double deadline_seconds; /* from the call; 0: NETSUM_OPERATION_SECONDS */
  double factor;           /* sums of floats: this rank's values are multiplied by it first; 1: they stay as they are */
  uint32_t tag;            /* equal on all ranks */
  uint32_t waits_for_all;  /* 1: NETSUM_STRAGGLER_SECONDS does not end this call; equal on all ranks */
} netsum_call;
#define NETSUM_CALL_INIT \
  { sizeof(netsum_call), 0, 1, 0, 0 }

/* "0.1.0", of the library that the program runs with; NETSUM_VERSION is that of the header. */
NETSUM_API const char* netsum_version(void);
/* "worker_lost", as docs/errors.md has it. */
NETSUM_API const char* netsum_status_name(netsum_status status);
/* The text of this thread's latest call that failed; valid until its next call. Empty: none has. */
NETSUM_API const char* netsum_last_error(void);
/* What that text says of ranks, for programs: those that died, left, are missing or made different calls. Returns how many
 * there are, and writes as many as there is room for; with NULL it only counts. */
NETSUM_API size_t netsum_last_error_ranks(uint32_t* ranks, size_t room);
/* The number of the call that waits, or that failed: 1, and `operation` is set; 0: none is known. */
NETSUM_API int netsum_last_error_operation(uint64_t* operation);
/* "host:port" of the aggregator concerned; empty: none is known. */
NETSUM_API const char* netsum_last_error_aggregator(void);
/* NETSUM_MISMATCH: what that rank called, in words, if it is this one or made another call; empty: not known. */
NETSUM_API const char* netsum_last_error_call(uint32_t rank);

/* Never NULL, but without memory. */
NETSUM_API netsum_options* netsum_options_create(void);
NETSUM_API void netsum_options_destroy(netsum_options* options); /* or NULL */
/* The settings are those of docs/pytorch.md, and have the names of the environment variables there: "NETSUM_SWITCH",
 * "NETSUM_PROTOCOL", "NETSUM_TOKEN_FILE" ... but for NETSUM_MODE, NETSUM_JOB, NETSUM_LOG and NETSUM_ADDRESS, which say what
 * a framework's binding is to do. What is not set here has its default; the environment is not read. Values are
 * checked by netsum_connect(). */
NETSUM_API netsum_status netsum_options_set(netsum_options* options, const char* name, const char* value);
/* Sets all that the environment has, where netsum_options_set() has set nothing. */
NETSUM_API netsum_status netsum_options_set_from_environment(netsum_options* options);
/* A line for people now and then, from any thread; it must not wait for an operation. */
NETSUM_API netsum_status netsum_options_set_log(netsum_options* options, void (*log)(void* context, const char* line),
                                                void* context);

/* Called once for each communicator that fails without a call of netsum_abort(), netsum_destroy() or netsum_options_stop(),
 * also while no operation is pending: on one of netsum's threads, where netsum_last_error() and what belongs to it tell of
 * this failure. It must be short, and call no other function of netsum. */
NETSUM_API netsum_status netsum_options_set_on_failure(netsum_options* options,
                                                       void (*on_failure)(void* context, netsum_status status),
                                                       void* context);
/* Any thread: calls of netsum_connect() with these options return NETSUM_CLOSED, and communicators that came from them are
 * over as after netsum_abort(). */
NETSUM_API netsum_status netsum_options_stop(netsum_options* options);

/* Joins the job at every aggregator, and returns when all ranks have. `options` may be destroyed then. */
NETSUM_API netsum_status netsum_connect(const netsum_options* options, const char* job, uint32_t rank, uint32_t world_size,
                                        netsum_communicator** communicator);
/* A second communicator of the same ranks; all ranks call it, in the same order. */
NETSUM_API netsum_status netsum_dup(netsum_communicator* communicator, netsum_communicator** copy);
/* A communicator for each color, of the ranks that give it, ordered by key; all ranks call it, in the same order. A color is
 * 0 ... UINT32_MAX; a rank that gives NETSUM_NO_COLOR gets NULL. */
#define NETSUM_NO_COLOR (-1)
NETSUM_API netsum_status netsum_split(netsum_communicator* communicator, int64_t color, int32_t key,
                                      netsum_communicator** group);
/* Leaves the job. NULL: nothing happens. */
NETSUM_API void netsum_destroy(netsum_communicator* communicator);

NETSUM_API uint32_t netsum_rank(const netsum_communicator* communicator);
NETSUM_API uint32_t netsum_world_size(const netsum_communicator* communicator);
/* One of the counters of netsum::Statistics by its name: "packets_sent", "operations" ... */
NETSUM_API netsum_status netsum_statistic(const netsum_communicator* communicator, const char* name, uint64_t* value);
/* Whether the job's protocol has the reduction: 1 or 0. */
NETSUM_API int netsum_can_reduce(const netsum_communicator* communicator, netsum_op op, netsum_dtype dtype);
/* NETSUM_OK, or the error after which the communicator is over, without a call. Any thread; never waits. */
NETSUM_API netsum_status netsum_failure(const netsum_communicator* communicator);
/* Fails pending and later operations with this reason, which ranks that wait for this one hear. Any thread. */
NETSUM_API netsum_status netsum_abort(netsum_communicator* communicator, const char* reason);

/* Of jobs with NETSUM_SURVIVORS (docs/elastic.md). Ranks are ascending: these return how many there are, and write as many
 * as there is room for; with NULL they only count. The ranks whose values the result of the latest call that waited has in
 * it: */
NETSUM_API size_t netsum_members(const netsum_communicator* communicator, uint32_t* ranks, size_t room);
/* Those that the latest netsum_admit() let in, on all ranks: on these it was their netsum_connect(). */
NETSUM_API size_t netsum_newcomers(const netsum_communicator* communicator, uint32_t* ranks, size_t room);
/* Lets new processes of ranks that died in, if some wait. All ranks in the job call it, in the same order relative to the
 * operations below. A newcomer's next call is that of the others after this one. */
NETSUM_API netsum_status netsum_admit(netsum_communicator* communicator, const netsum_call* call);
/* With NETSUM_STRAGGLER_SECONDS: how many of the next calls the other ranks have ended without this one, as last heard. */
NETSUM_API uint64_t netsum_behind(const netsum_communicator* communicator);
/* The number of the next call: the count of calls before it, in this process and in the rank's former processes. */
NETSUM_API uint64_t netsum_next_operation(const netsum_communicator* communicator);

/* Lengths are in elements, of one rank's part where there are parts. `call` may be NULL; a tensor of length 0 too. `out` is
 * `in`, or apart from it; reduce_scatter's may be rank's part of `in`, and all_gather's `in` rank's part of `out`. */
NETSUM_API netsum_status netsum_all_reduce(netsum_communicator* communicator, const void* in, void* out, size_t length,
                                           netsum_dtype dtype, netsum_op op, const netsum_call* call);
/* Of `count` tensors, each with its length; short ones share one operation. */
NETSUM_API netsum_status netsum_all_reduce_coalesced(netsum_communicator* communicator, void* const* inout,
                                                     const size_t* lengths, size_t count, netsum_dtype dtype, netsum_op op,
                                                     const netsum_call* call);
NETSUM_API netsum_status netsum_reduce(netsum_communicator* communicator, void* inout, size_t length, netsum_dtype dtype,
                                       netsum_op op, uint32_t root, const netsum_call* call);
NETSUM_API netsum_status netsum_reduce_scatter(netsum_communicator* communicator, const void* in, void* out,
                                               size_t length_of_out, netsum_dtype dtype, netsum_op op,
                                               const netsum_call* call);
NETSUM_API netsum_status netsum_all_gather(netsum_communicator* communicator, const void* in, void* out, size_t length_of_in,
                                           netsum_dtype dtype, const netsum_call* call);
/* Of parts of different lengths: `counts` has one for each rank, the same on all ranks, and is read during the call. */
NETSUM_API netsum_status netsum_reduce_scatter_v(netsum_communicator* communicator, const void* in, void* out,
                                                 const size_t* counts, netsum_dtype dtype, netsum_op op,
                                                 const netsum_call* call);
NETSUM_API netsum_status netsum_all_gather_v(netsum_communicator* communicator, const void* in, void* out,
                                             const size_t* counts, netsum_dtype dtype, const netsum_call* call);
NETSUM_API netsum_status netsum_broadcast(netsum_communicator* communicator, void* inout, size_t length, netsum_dtype dtype,
                                          uint32_t root, const netsum_call* call);
NETSUM_API netsum_status netsum_barrier(netsum_communicator* communicator, const netsum_call* call);

/* The same, without waiting: the tensors are lent to netsum until netsum_wait() or netsum_work_destroy() returns. */
NETSUM_API netsum_status netsum_all_reduce_async(netsum_communicator* communicator, const void* in, void* out, size_t length,
                                                 netsum_dtype dtype, netsum_op op, const netsum_call* call,
                                                 netsum_work** work);
NETSUM_API netsum_status netsum_all_reduce_coalesced_async(netsum_communicator* communicator, void* const* inout,
                                                           const size_t* lengths, size_t count, netsum_dtype dtype,
                                                           netsum_op op, const netsum_call* call, netsum_work** work);
NETSUM_API netsum_status netsum_reduce_async(netsum_communicator* communicator, void* inout, size_t length,
                                             netsum_dtype dtype, netsum_op op, uint32_t root, const netsum_call* call,
                                             netsum_work** work);
NETSUM_API netsum_status netsum_reduce_scatter_async(netsum_communicator* communicator, const void* in, void* out,
                                                     size_t length_of_out, netsum_dtype dtype, netsum_op op,
                                                     const netsum_call* call, netsum_work** work);
NETSUM_API netsum_status netsum_all_gather_async(netsum_communicator* communicator, const void* in, void* out,
                                                 size_t length_of_in, netsum_dtype dtype, const netsum_call* call,
                                                 netsum_work** work);
NETSUM_API netsum_status netsum_reduce_scatter_v_async(netsum_communicator* communicator, const void* in, void* out,
                                                       const size_t* counts, netsum_dtype dtype, netsum_op op,
                                                       const netsum_call* call, netsum_work** work);
NETSUM_API netsum_status netsum_all_gather_v_async(netsum_communicator* communicator, const void* in, void* out,
                                                   const size_t* counts, netsum_dtype dtype, const netsum_call* call,
                                                   netsum_work** work);
NETSUM_API netsum_status netsum_broadcast_async(netsum_communicator* communicator, void* inout, size_t length,
                                                netsum_dtype dtype, uint32_t root, const netsum_call* call,
                                                netsum_work** work);
NETSUM_API netsum_status netsum_barrier_async(netsum_communicator* communicator, const netsum_call* call,
                                              netsum_work** work);
/* Whether it has ended, with a result or an error: 1 or 0. */
NETSUM_API int netsum_work_done(const netsum_work* work);
NETSUM_API netsum_status netsum_wait(netsum_work* work);
/* Waits for so long at most. `ended` is 1: as netsum_wait(); 0: the operation goes on. */
NETSUM_API netsum_status netsum_wait_for(netsum_work* work, double seconds, int* ended);
/* Once it has returned without an error: as netsum_members(). */
NETSUM_API size_t netsum_work_members(const netsum_work* work, uint32_t* ranks, size_t room);
/* Calls then(context) once the work is done: on one of netsum's threads, or before this returns. It must be short and must
 * call no function of netsum. The result is the caller's after netsum_wait(), which then does not wait. */
NETSUM_API netsum_status netsum_work_on_done(netsum_work* work, void (*then)(void* context), void* context);
/* Sets a descriptor that is readable once the work is done, for poll() and event loops. The work closes it. */
NETSUM_API netsum_status netsum_work_descriptor(netsum_work* work, int* descriptor);
/* Waits until the tensors are the caller's again. NULL: nothing happens. */
NETSUM_API void netsum_work_destroy(netsum_work* work);

#ifdef __cplusplus
}
#endif

#endif
