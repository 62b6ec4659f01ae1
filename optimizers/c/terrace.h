/* terrace for programs in C, and for every language that can call C: chunks in three tiers of memory, and optimizers whose
   states live there. Link with libterrace.so (pkg-config terrace).

   Owner:   a handle is yours until you destroy it. Leases end before their chunks are destroyed. Streams, weights and gradients
            are yours, and outlive the handle that they were given to.
   Threads: chunks and their leases: any thread, also at once, except create and destroy; a stream and a lease, one thread at a
            time. An optimizer: one thread at a time. The error text belongs to the thread whose call failed.
   Errors:  every function that can fail returns a terrace_status. terrace_last_error_message() then says what failed, why and
            how to mend it. A call that fails leaves its results as they were. No C++ exception leaves the library.

   The binary interface is that of libterrace.so.0: fields are only added at the end of a structure, and functions only added.
   A structure begins with its size; TERRACE_INIT(terrace_chunks_options) sets it and zeroes the rest. Zero in a field means its
   default. */
#ifndef TERRACE_C_TERRACE_H
#define TERRACE_C_TERRACE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define TERRACE_API __attribute__((visibility("default")))
#else
#define TERRACE_API
#endif
#define TERRACE_ABI_VERSION 0
/* The initial value of a structure: terrace_step s = TERRACE_INIT(terrace_step); */
#define TERRACE_INIT(type) \
  { .struct_size = sizeof(type) }

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t terrace_status;
enum {
  TERRACE_OK = 0,
  TERRACE_FAILED = 1,       /* something did not work while it ran: a disk, a file, memory */
  TERRACE_REFUSED = 2,      /* a setting or an argument is not accepted */
  TERRACE_DOES_NOT_FIT = 3, /* a budget is too small */
  TERRACE_MISSING = 4,      /* hardware, a library or a folder is absent */
  TERRACE_CORRUPT = 5,      /* stored bytes are not as they were written */
  TERRACE_INTERRUPTED = 6,
  TERRACE_MISUSE = 7 /* a mistake of the program: an unknown chunk, a null pointer */
};
typedef int32_t terrace_tier;
enum { TERRACE_DEVICE = 0, TERRACE_HOST = 1 };
typedef int32_t terrace_access;
enum { TERRACE_READ = 0, TERRACE_OVERWRITE = 1, TERRACE_UPDATE = 2 };
typedef int32_t terrace_dtype;
enum { TERRACE_FP32 = 0, TERRACE_BF16 = 1, TERRACE_FP64 = 2, TERRACE_FP16 = 3 };

typedef struct terrace_chunks terrace_chunks;
typedef struct terrace_lease terrace_lease;
typedef struct terrace_saved terrace_saved;
typedef struct terrace_optimizer terrace_optimizer;
typedef uint32_t terrace_chunk;

/* TERRACE_ABI_VERSION of the library that is loaded; another number than the header's: do not call it. */
TERRACE_API uint32_t terrace_abi_version(void);
TERRACE_API const char* terrace_version(void); /* "0.1.0" */
/* Of the last call of this thread that failed; until the next one that fails. Never null. */
TERRACE_API const char* terrace_last_error_message(void);

typedef struct terrace_chunks_options {
  size_t struct_size;
  uint64_t device_bytes, host_bytes, nvme_bytes;
  const char* const* nvme_paths; /* folders; none: no disk tier */
  size_t nvme_path_count;
  const char* store;    /* a folder that lasts, or with nvme_paths a name in each; null: the disk tier is temporary */
  int32_t cuda;         /* 1: the device tier is a GPU's memory; 0: host memory */
  int32_t cuda_ordinal; /* which GPU, with `cuda` */
  int32_t threads;      /* of the CPU's pool; 0: all cores */
} terrace_chunks_options;

typedef struct terrace_use {
  terrace_chunk chunk;
  terrace_access access;
} terrace_use;

typedef struct terrace_stats {
  size_t struct_size;
  uint64_t upload_bytes, download_bytes, read_bytes, write_bytes; /* moved so far */
  uint64_t peak_device_bytes, peak_host_bytes, peak_disk_bytes;
} terrace_stats;

TERRACE_API terrace_status terrace_chunks_create(const terrace_chunks_options* options, terrace_chunks** chunks);
TERRACE_API void terrace_chunks_destroy(terrace_chunks* chunks); /* null: nothing */
/* `name` null: a chunk without a name, which is not committed. With a name it has the content of the last commit, if that has
 * it. */
TERRACE_API terrace_status terrace_chunks_add(terrace_chunks* chunks, const char* name, uint64_t bytes, terrace_chunk* chunk);
TERRACE_API terrace_status terrace_chunks_has_content(terrace_chunks* chunks, terrace_chunk chunk, int32_t* has);
TERRACE_API terrace_status terrace_chunks_remove(terrace_chunks* chunks, terrace_chunk chunk);
TERRACE_API terrace_status terrace_chunks_resize(terrace_chunks* chunks, terrace_chunk chunk, uint64_t bytes);
TERRACE_API terrace_status terrace_chunks_drop(terrace_chunks* chunks, terrace_chunk chunk); /* its content */
TERRACE_API terrace_status terrace_chunks_prefetch(terrace_chunks* chunks, terrace_chunk chunk, terrace_tier tier);
/* Leases all chunks or none. `stream` is a cudaStream_t, which waits for the bytes (the default stream: cudaStreamLegacy);
   null: the call returns when the bytes are there. It blocks while other leases hold the chunks or the room. */
TERRACE_API terrace_status terrace_chunks_acquire(terrace_chunks* chunks, const terrace_use* uses, size_t count,
                                                  terrace_tier tier, void* stream, terrace_lease** lease);
TERRACE_API terrace_status terrace_lease_bytes(const terrace_lease* lease, size_t i, void** data, uint64_t* bytes);
/* Ends the lease, with the stream of acquire when the work submitted to it so far has ended. Null: nothing. */
TERRACE_API void terrace_lease_release(terrace_lease* lease);
/* The same after the work of another stream. If it fails, the lease goes on. */
TERRACE_API terrace_status terrace_lease_release_after(terrace_lease* lease, void* stream);
/* A tensor that a forward saves and its backward fetches, in host memory and on the disk; the last one is expected first. With
   a stream, `data` may change by what is submitted to it later; without, when the call returns. Never committed. */
TERRACE_API terrace_status terrace_chunks_save(terrace_chunks* chunks, const void* data, uint64_t bytes, void* stream,
                                               terrace_saved** saved);
TERRACE_API terrace_status terrace_saved_fetch(const terrace_saved* saved, void* to, uint64_t bytes, void* stream);
TERRACE_API void terrace_saved_drop(terrace_saved* saved); /* before its chunks are destroyed. Null: nothing */
TERRACE_API terrace_status terrace_chunks_begin_pass(terrace_chunks* chunks, const char* loop);
TERRACE_API terrace_status terrace_chunks_end_pass(terrace_chunks* chunks);
TERRACE_API terrace_status terrace_chunks_flush(terrace_chunks* chunks);
/* Makes all chunks with a name durable, all or nothing. */
TERRACE_API terrace_status terrace_chunks_commit(terrace_chunks* chunks, uint64_t step, const char* payload);
TERRACE_API terrace_status terrace_chunks_last_commit(terrace_chunks* chunks, int32_t* exists, uint64_t* step);
TERRACE_API terrace_status terrace_chunks_stats(terrace_chunks* chunks, terrace_stats* stats);

/* terrace_optimizer_settings s = TERRACE_INIT(terrace_optimizer_settings), then terrace_optimizer_default_settings(&s): zeroes
   are not its defaults. An optimizer reads those that it has. */
typedef struct terrace_optimizer_settings {
  size_t struct_size;
  double beta1, beta2, eps, weight_decay, momentum;
  int32_t nesterov;
} terrace_optimizer_settings;

typedef struct terrace_optimizer_options {
  size_t struct_size;
  const terrace_chunks_options* tiers;        /* read during the call */
  const char* optimizer;                      /* null: "adamw" */
  const char* recipe;                         /* of states and masters; null: "fp32" */
  uint64_t chunk_elements;                    /* whole blocks of 4,096; 0: from the host's budget */
  uint64_t seed;                              /* of stochastic rounding */
  const terrace_optimizer_settings* settings; /* read during the call; null: the defaults */
} terrace_optimizer_options;

typedef struct terrace_tensor {
  size_t struct_size;
  const char* name; /* by which a later life finds it */
  void *weight, *gradient;
  terrace_dtype weight_dtype, gradient_dtype;
  const int64_t* shape; /* one to four dimensions */
  size_t rank;
  double rate;           /* multiplies the learning rate; 0: 1 */
  int32_t without_decay; /* 1: exempt from weight decay */
  int32_t not_hidden;    /* 1: an embedding or a head, which Muon does not orthogonalise */
} terrace_tensor;

typedef struct terrace_step {
  size_t struct_size;
  double rate;
  double clip;           /* greatest norm of all gradients together; 0: none */
  double gradient_scale; /* 0: 1 */
  void* stream;          /* a cudaStream_t; null: the call returns when the weights are updated */
} terrace_step;

typedef struct terrace_step_result {
  size_t struct_size;
  double norm;     /* with `clip`; else 0 */
  int32_t applied; /* 0: the norm is not finite, and nothing has changed */
} terrace_step_result;

TERRACE_API terrace_status terrace_optimizer_default_settings(terrace_optimizer_settings* settings);
TERRACE_API terrace_status terrace_optimizer_create(const terrace_optimizer_options* options, terrace_optimizer** optimizer);
TERRACE_API void terrace_optimizer_destroy(terrace_optimizer* optimizer);
/* If the last commit has the tensor, its weights are overwritten with those of the commit. */
TERRACE_API terrace_status terrace_optimizer_add(terrace_optimizer* optimizer, const terrace_tensor* tensor);
/* `result` may be null. */
TERRACE_API terrace_status terrace_optimizer_step(terrace_optimizer* optimizer, const terrace_step* step,
                                                  terrace_step_result* result);
TERRACE_API terrace_status terrace_optimizer_commit(terrace_optimizer* optimizer, uint64_t n);
TERRACE_API terrace_status terrace_optimizer_last_commit(terrace_optimizer* optimizer, uint64_t* n); /* 0: none */

#ifdef __cplusplus
}
#endif
#endif
