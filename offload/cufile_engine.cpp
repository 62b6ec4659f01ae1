// Reads and writes through cuFile. Its calls block, so NVIDIA advises one thread for each request at a time.
#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <map>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/notice.h>
#include <terrace/offload/cufile.h>
#include <terrace/offload/transfer_threads.h>

namespace terrace {
namespace {

constexpr int kAlreadyOpen = 5026;  // CU_FILE_DRIVER_ALREADY_OPEN
constexpr int kNoMemory = 5043;     // CU_FILE_NOMEM_ERROR

// The files and memory that one engine has registered with cuFile.
class Registered {
 public:
  Registered(const CuFile& library, const IoOptions& options) : library_(library), descriptors_(options.files) {
    for (const int descriptor : descriptors_) files_.push_back(register_file(descriptor));
    for (const auto buffer : options.buffers) register_memory(buffer);
  }
  ~Registered() {
    for (const auto& [base, bytes] : memory_) library_.release_memory(base);
    for (auto* const file : files_)
      if (file) library_.release_file(file);
  }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

  std::int64_t transfer(const IoRequest& request) {
    const auto index = static_cast<std::size_t>(request.file);
    if (!files_[index]) return transfer_by_call(descriptors_[index], request);
    const auto [base, at] = place_of(request.buffer + request.moved_bytes);
    const auto bytes = request.bytes - request.moved_bytes;
    const auto offset = static_cast<off_t>(request.offset + request.moved_bytes);
    const auto moved = request.op == IoRequest::Op::read ? library_.read(files_[index], base, bytes, offset, at)
                                                         : library_.write(files_[index], base, bytes, offset, at);
    return moved >= 0 ? moved : moved == -1 ? -errno : refused(static_cast<int>(-moved));
  }

 private:
  CuFile::File register_file(int descriptor) {
    CuFile::File file = nullptr;
    CuFile::Description description;
    description.descriptor = descriptor;
    const auto status = library_.register_file(&file, &description);
    if (status.error == 0) return file;
    // No warning for an invalid descriptor: the kernel reports that error when the file is used.
    if (::fcntl(descriptor, F_GETFD) >= 0)
      warn(fmt::format("a file is read and written without cuFile: {}", describe_cufile(status.error)));
    return nullptr;
  }
  void register_memory(std::span<std::byte> buffer) {
    if (buffer.empty()) return;
    const auto status = library_.register_memory(buffer.data(), buffer.size(), 0);
    if (status.error == 0)
      memory_.emplace(buffer.data(), buffer.size());
    else
      warn(fmt::format("memory is used without registration: {}", describe_cufile(status.error)));
  }

  // Registered memory is named by its base and an offset, other memory by its address.
  [[nodiscard]] std::pair<std::byte*, off_t> place_of(std::byte* buffer) const {
    auto at = memory_.upper_bound(buffer);
    if (at == memory_.begin()) return {buffer, 0};
    --at;
    const auto offset = static_cast<std::size_t>(buffer - at->first);
    if (offset >= at->second) return {buffer, 0};
    return {at->first, static_cast<off_t>(offset)};
  }
  std::int64_t refused(int error) {
    warn(describe_cufile(error));
    return error == kNoMemory ? -ENOMEM : -EIO;
  }
  void warn(const std::string& what) {
    if (!warned_.exchange(true)) terrace::warn(fmt::format("GPUDirect Storage: {}", what));
  }

  const CuFile library_;
  const std::vector<int> descriptors_;
  std::vector<CuFile::File> files_;           // null: cuFile refused it
  std::map<std::byte*, std::size_t> memory_;  // by base
  std::atomic<bool> warned_{false};
};

}  // namespace

std::unique_ptr<IoEngine> make_cufile_engine(const IoOptions& options, std::string& why, const CuFileOptions& with) {
  const auto library = load_cufile(why, with.library);
  if (!library) return nullptr;
  if (const auto status = library->open_driver(); status.error != 0 && status.error != kAlreadyOpen) {
    why = describe_cufile(status.error);
    return nullptr;
  }
  auto registered = std::make_shared<Registered>(*library, options);
  return make_transfer_threads({.name = "cufile",
                                .files = options.files.size(),
                                .threads = std::min(with.threads, static_cast<int>(std::max(options.queue_depth, 1U))),
                                .enter = with.enter,
                                .transfer = [registered](const IoRequest& request) { return registered->transfer(request); }});
}

}  // namespace terrace
