// A libcufile.so.0 for machines without one: cuFile's calls, implemented with pread and pwrite. They check the rules of its
// manual and end the process with a one-line message if one is broken. Environment variables set results:
// TERRACE_FAKE_CUFILE_DRIVER (of opening the driver; 0), TERRACE_FAKE_CUFILE_FILES and TERRACE_FAKE_CUFILE_MEMORY (of
// registering; 0), TERRACE_FAKE_CUFILE_IO (of every third transfer; 0).
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace {

struct Status {  // CUfileError_t; returned by functions of C, so it has no initialisers
  int error, cuda_error;
};
struct Description {  // CUfileDescr_t
  int type;
  union {
    int descriptor;
    void* handle;
  };
  const void* operations;
};

int number(const char* name) {
  const char* const text = std::getenv(name);
  return text ? std::atoi(text) : 0;
}

[[noreturn]] void misuse(const char* what) {
  std::fprintf(stderr, "misuse of cuFile: %s\n", what);
  std::abort();
}

std::mutex mutex;
bool opened = false;
std::set<void*> files;  // each handle is a separate address; the descriptor is stored there
std::map<const std::byte*, std::size_t> memory;
std::int64_t transfers = 0;

// The memory at a registered base and an offset.
std::byte* place(const void* base, std::size_t bytes, off_t offset) {
  auto* const at = static_cast<std::byte*>(const_cast<void*>(base));
  const auto known = memory.find(at);
  if (known == memory.end()) {
    if (offset != 0) misuse("an offset from memory that is not registered");
    for (const auto& [begin, length] : memory)
      if (at > begin && at < begin + length) misuse("an address inside of registered memory in place of its base");
    return at;
  }
  if (static_cast<std::size_t>(offset) + bytes > known->second) misuse("a transfer that leaves its registered memory");
  return at + offset;
}

// Every second transfer is short, as cuFile allows.
template <class Call>
ssize_t transfer(void* file, const void* base, std::size_t bytes, off_t offset, const Call& call) {
  int descriptor = -1;
  std::byte* at = nullptr;
  {
    const std::lock_guard lock(mutex);
    if (!opened) misuse("a transfer before the driver is open");
    if (!files.contains(file)) misuse("a transfer on a file that is not registered");
    descriptor = *static_cast<int*>(file);
    at = place(base, bytes, offset);
    const auto turn = ++transfers;
    if (const int error = number("TERRACE_FAKE_CUFILE_IO"); error != 0 && turn % 3 == 0) return -error;
    constexpr std::size_t kPage = 4096;
    if (turn % 2 == 0 && bytes > kPage) bytes = (bytes / kPage + 1) / 2 * kPage;
  }
  return call(descriptor, at, bytes);
}

}  // namespace

extern "C" {

Status cuFileDriverOpen() {
  const std::lock_guard lock(mutex);
  const int error = number("TERRACE_FAKE_CUFILE_DRIVER");
  if (error == 0 && std::exchange(opened, true)) return {5026, 0};
  return {error, 0};
}
Status cuFileHandleRegister(void** file, Description* description) {
  const std::lock_guard lock(mutex);
  if (!opened) misuse("a file is registered before the driver is open");
  if (description->type != 1) misuse("a file of another type than a descriptor");
  if (description->operations) misuse("operations of a file system of its own");
  if (const int error = number("TERRACE_FAKE_CUFILE_FILES")) return {error, 0};
  const int flags = ::fcntl(description->descriptor, F_GETFL);
  if (flags < 0) return {5022, 0};
  if ((flags & O_DIRECT) == 0) return {5019, 0};
  *file = new int(description->descriptor);
  files.insert(*file);
  return {};
}
void cuFileHandleDeregister(void* file) {
  const std::lock_guard lock(mutex);
  if (files.erase(file) == 0) misuse("a file is released that is not registered");
  delete static_cast<int*>(file);
}
Status cuFileBufRegister(const void* base, std::size_t bytes, int flags) {
  const std::lock_guard lock(mutex);
  if (flags != 0) misuse("flags that are not asked for");
  if (const int error = number("TERRACE_FAKE_CUFILE_MEMORY")) return {error, 0};
  return {memory.emplace(static_cast<const std::byte*>(base), bytes).second ? 0 : 5023, 0};
}
Status cuFileBufDeregister(const void* base) {
  const std::lock_guard lock(mutex);
  if (memory.erase(static_cast<const std::byte*>(base)) == 0) misuse("memory is released that is not registered");
  return {};
}
ssize_t cuFileRead(void* file, void* base, std::size_t bytes, off_t file_offset, off_t offset) {
  return transfer(file, base, bytes, offset,
                  [&](int descriptor, std::byte* at, std::size_t n) { return ::pread(descriptor, at, n, file_offset); });
}
ssize_t cuFileWrite(void* file, const void* base, std::size_t bytes, off_t file_offset, off_t offset) {
  return transfer(file, base, bytes, offset,
                  [&](int descriptor, std::byte* at, std::size_t n) { return ::pwrite(descriptor, at, n, file_offset); });
}
Status cuFileGetVersion(int* version) {
  *version = 1150;
  return {};
}
// For the test: the number of objects that are still registered.
std::size_t terrace_fake_cufile_registered() {
  const std::lock_guard lock(mutex);
  return files.size() + memory.size();
}

}  // extern "C"
