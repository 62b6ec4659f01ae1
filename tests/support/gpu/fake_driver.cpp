// A libcuda.so.1 for machines without one: the driver's calls that list the GPUs. Environment variables, read at each call, set
// results: TERRACE_FAKE_GPUS (their number; 1), TERRACE_FAKE_DRIVER_VERSION (13000), TERRACE_FAKE_DRIVER_ERROR (of cuInit; 0),
// TERRACE_FAKE_GPU_FREE_MIB (default: all of it), TERRACE_FAKE_CAPABILITY (91: 9.1). CUDA_VISIBLE_DEVICES=K shows the K-th
// alone.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

namespace {

int number(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

int write(char* to, int bytes, const char* text, int device) {
  std::snprintf(to, static_cast<std::size_t>(bytes), "%s%d", text, device);
  return 0;
}

thread_local void* current = nullptr;  // the thread's context

}  // namespace

extern "C" {

// Variables that CUDA reads now cannot be set later. The tests' CUDA module asks for their values at this moment.
int cuInit(unsigned) {
  if (const int error = number("TERRACE_FAKE_DRIVER_ERROR", 0)) return error;
  if (!std::getenv("CUDA_DEVICE_MAX_CONNECTIONS")) return 3;  // CUDA_ERROR_NOT_INITIALIZED
  const char* const loading = std::getenv("CUDA_MODULE_LOADING");
  setenv("TERRACE_FAKE_LOADING", loading ? loading : "LAZY", 0);
  return 0;
}
int cuDriverGetVersion(int* version) {
  *version = number("TERRACE_FAKE_DRIVER_VERSION", 13000);
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = number("CUDA_VISIBLE_DEVICES", -1) >= 0 ? 1 : number("TERRACE_FAKE_GPUS", 1);
  return 0;
}
int cuDeviceGet(int* device, int index) {
  *device = number("CUDA_VISIBLE_DEVICES", index);
  return 0;
}
int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  std::fill_n(uuid, 16, static_cast<unsigned char>(0));
  uuid[0] = static_cast<unsigned char>(device);
  return 0;
}
int cuDeviceGetName(char* name, int bytes, int device) { return write(name, bytes, "Imaginary H", device); }
int cuDeviceGetPCIBusId(char* id, int bytes, int device) { return write(id, bytes, "FFFF:0A:00.", device); }
int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = std::size_t{3} << 30;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  static int contexts[64];
  if (const int error = number("TERRACE_FAKE_DRIVER_ERROR", 0)) return error;
  *context = &contexts[device];
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuCtxPushCurrent_v2(void* context) {
  current = context;
  return 0;
}
int cuCtxPopCurrent_v2(void** context) {
  *context = current;
  current = nullptr;
  return 0;
}
int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  if (!current) return 201;  // CUDA_ERROR_INVALID_CONTEXT
  cuDeviceTotalMem_v2(total, 0);
  *free = static_cast<std::size_t>(number("TERRACE_FAKE_GPU_FREE_MIB", static_cast<int>(*total >> 20))) << 20;
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  // A slow card of one multiprocessor at 100 MHz, and 4,096 bits of memory at 2.4 GHz.
  const int capability = number("TERRACE_FAKE_CAPABILITY", 91);
  *value = attribute == 75   ? capability / 10
           : attribute == 76 ? capability % 10
           : attribute == 13 ? 100'000
           : attribute == 36 ? 2'400'000
           : attribute == 37 ? 4096
                             : 1;
  return 0;
}
int cuGetErrorName(int, const char** name) {
  *name = "CUDA_ERROR_IMAGINARY";
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "not real";
  return 0;
}

}  // extern "C"
