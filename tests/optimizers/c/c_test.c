/* Chunks and an optimizer through the C interface, and its errors. The argument is a folder that it may fill. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <terrace.h>

#define COUNT 20000

static void check(int held, const char* what, int line) {
  if (held) return;
  fprintf(stderr, "line %d: %s\n%s\n", line, what, terrace_last_error_message());
  exit(1);
}
#define CHECK(what) check((what), #what, __LINE__)
#define FAILS(call, status, words)                              \
  do {                                                          \
    CHECK((call) == (status));                                  \
    CHECK(strstr(terrace_last_error_message(), words) != NULL); \
  } while (0)

static const char* paths[1];

static terrace_chunks_options small_tiers(const char* store) {
  terrace_chunks_options options = TERRACE_INIT(terrace_chunks_options);
  options.device_bytes = 256 << 10;
  options.host_bytes = 1 << 20;
  options.nvme_bytes = 64 << 20;
  options.nvme_paths = paths;
  options.nvme_path_count = store ? 0 : 1;
  options.store = store;
  options.threads = 2;
  return options;
}

/* Eight chunks of 256 KiB in a device of one and a host of four: some go to the disk and come back. */
static void chunks_keep_their_bytes(void) {
  const terrace_chunks_options options = small_tiers(NULL);
  terrace_chunks* chunks = NULL;
  terrace_lease* lease = NULL;
  terrace_chunk all[8];
  terrace_use use;
  terrace_stats stats = TERRACE_INIT(terrace_stats);
  void* data = NULL;
  uint64_t bytes = 0;
  int i, pass;
  CHECK(terrace_chunks_create(&options, &chunks) == TERRACE_OK);
  for (i = 0; i < 8; ++i) CHECK(terrace_chunks_add(chunks, NULL, 256 << 10, &all[i]) == TERRACE_OK);
  for (pass = 0; pass < 2; ++pass)
    for (i = 0; i < 8; ++i) {
      uint64_t j;
      use.chunk = all[i];
      use.access = pass == 0 ? TERRACE_OVERWRITE : TERRACE_READ;
      CHECK(terrace_chunks_acquire(chunks, &use, 1, TERRACE_DEVICE, NULL, &lease) == TERRACE_OK);
      CHECK(terrace_lease_bytes(lease, 0, &data, &bytes) == TERRACE_OK && bytes == 256 << 10);
      if (pass == 0) memset(data, i + 1, (size_t)bytes);
      for (j = 0; j < bytes; ++j) CHECK(((unsigned char*)data)[j] == i + 1);
      FAILS(terrace_lease_bytes(lease, 1, &data, &bytes), TERRACE_MISUSE, "has no number 1");
      terrace_lease_release(lease);
    }
  CHECK(terrace_chunks_stats(chunks, &stats) == TERRACE_OK && stats.read_bytes > 0 && stats.peak_device_bytes == 256 << 10);
  CHECK(stats.struct_size == sizeof stats);

  lease = NULL;
  CHECK(terrace_chunks_resize(chunks, all[0], 512 << 10) == TERRACE_OK);
  use.chunk = all[0];
  use.access = TERRACE_OVERWRITE;
  FAILS(terrace_chunks_acquire(chunks, &use, 1, TERRACE_DEVICE, NULL, &lease), TERRACE_DOES_NOT_FIT,
        "262144 bytes are missing\n  lease fewer bytes at once, or give 524288 of device_bytes");
  use.access = 7;
  FAILS(terrace_chunks_acquire(chunks, &use, 1, TERRACE_DEVICE, NULL, &lease), TERRACE_MISUSE, "access 7");
  CHECK(lease == NULL);
  FAILS(terrace_chunks_prefetch(NULL, all[0], TERRACE_HOST), TERRACE_MISUSE, "null");
  terrace_chunks_destroy(chunks);
}

/* Eight tensors of 300,000 bytes beside a host of a MiB. */
static void saved_tensors_come_back(void) {
  static unsigned char tensor[300000], again[300000];
  const terrace_chunks_options options = small_tiers(NULL);
  terrace_chunks* chunks = NULL;
  terrace_saved* saved[8];
  int i;
  CHECK(terrace_chunks_create(&options, &chunks) == TERRACE_OK);
  for (i = 0; i < 8; ++i) {
    memset(tensor, i + 1, sizeof tensor);
    CHECK(terrace_chunks_save(chunks, tensor, sizeof tensor, NULL, &saved[i]) == TERRACE_OK);
  }
  FAILS(terrace_saved_fetch(saved[0], again, 7, NULL), TERRACE_MISUSE, "7 bytes");
  for (i = 8; i-- > 0;) {
    memset(tensor, i + 1, sizeof tensor);
    CHECK(terrace_saved_fetch(saved[i], again, sizeof again, NULL) == TERRACE_OK);
    CHECK(memcmp(tensor, again, sizeof again) == 0);
    terrace_saved_drop(saved[i]);
  }
  terrace_saved_drop(NULL);
  terrace_chunks_destroy(chunks);
}

static void structures_have_sizes(void) {
  struct {
    terrace_chunks_options known;
    uint64_t newer;
  } longer;
  terrace_chunks* chunks = NULL;
  terrace_chunks_options options = small_tiers(NULL);
  options.struct_size = 0;
  FAILS(terrace_chunks_create(&options, &chunks), TERRACE_MISUSE, "TERRACE_INIT");
  longer.known = small_tiers(NULL);
  longer.known.struct_size = sizeof longer;
  longer.newer = 1;
  FAILS(terrace_chunks_create(&longer.known, &chunks), TERRACE_REFUSED, "newer libterrace.so");
  CHECK(chunks == NULL);
  longer.newer = 0;
  CHECK(terrace_chunks_create(&longer.known, &chunks) == TERRACE_OK);
  terrace_chunks_destroy(chunks);
}

/* Steps [from, to) of AdamW; the gradient is the weight's distance from 1. */
static void train(const char* store, double beta2, uint64_t from, uint64_t to, float* weight) {
  static float gradient[COUNT];
  const terrace_chunks_options tiers = small_tiers(store);
  const int64_t shape[] = {COUNT};
  terrace_optimizer_options options = TERRACE_INIT(terrace_optimizer_options);
  terrace_optimizer_settings settings = TERRACE_INIT(terrace_optimizer_settings);
  terrace_tensor tensor = TERRACE_INIT(terrace_tensor);
  terrace_optimizer* optimizer = NULL;
  terrace_step step = TERRACE_INIT(terrace_step);
  terrace_step_result result = TERRACE_INIT(terrace_step_result);
  uint64_t n = 99;
  int i;
  CHECK(terrace_optimizer_default_settings(&settings) == TERRACE_OK && settings.beta1 == 0.9);
  settings.beta2 = beta2;
  options.tiers = &tiers;
  options.settings = &settings;
  options.chunk_elements = 4096;
  CHECK(terrace_optimizer_create(&options, &optimizer) == TERRACE_OK);
  CHECK(terrace_optimizer_last_commit(optimizer, &n) == TERRACE_OK && n == from);
  tensor.name = "w";
  tensor.weight = weight;
  tensor.gradient = gradient;
  tensor.shape = shape;
  tensor.rank = 1;
  tensor.weight_dtype = 9;
  FAILS(terrace_optimizer_add(optimizer, &tensor), TERRACE_REFUSED, "TERRACE_FP32");
  tensor.weight_dtype = TERRACE_FP32;
  tensor.rank = 5;
  FAILS(terrace_optimizer_add(optimizer, &tensor), TERRACE_REFUSED, "one to four");
  tensor.rank = 1;
  CHECK(terrace_optimizer_add(optimizer, &tensor) == TERRACE_OK);
  step.rate = 0.01;
  step.clip = 1;
  for (n = from; n < to; ++n) {
    for (i = 0; i < COUNT; ++i) gradient[i] = weight[i] - 1;
    CHECK(terrace_optimizer_step(optimizer, &step, &result) == TERRACE_OK && result.applied == 1 && result.norm > 0);
  }
  if (store) CHECK(terrace_optimizer_commit(optimizer, to) == TERRACE_OK);
  terrace_optimizer_destroy(optimizer);
}

/* The bits are those of one life. */
static void an_optimizer_continues(const char* store) {
  static float once[COUNT], twice[COUNT];
  int i;
  for (i = 0; i < COUNT; ++i) once[i] = twice[i] = (float)i / COUNT;
  train(NULL, 0.99, 0, 6, once);
  train(store, 0.99, 0, 3, twice);
  for (i = 0; i < COUNT; ++i) twice[i] = -1; /* the commit has them */
  train(store, 0.99, 3, 6, twice);
  CHECK(memcmp(once, twice, sizeof once) == 0);
  CHECK(once[0] > 0);
  for (i = 0; i < COUNT; ++i) twice[i] = (float)i / COUNT;
  train(NULL, 0.9, 0, 6, twice); /* other settings, other weights */
  CHECK(memcmp(once, twice, sizeof once) != 0);
}

int main(int count, char** arguments) {
  char store[4096];
  if (count != 2) return 2;
  paths[0] = arguments[1];
  sprintf(store, "%.4000s/store", arguments[1]);
  CHECK(terrace_abi_version() == TERRACE_ABI_VERSION);
  chunks_keep_their_bytes();
  saved_tensors_come_back();
  structures_have_sizes();
  an_optimizer_continues(store);
  printf("terrace %s from C: every byte and every weight is exact\n", terrace_version());
  return 0;
}
