// File operations that end even if the disk hangs.
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <terrace/offload/io/file_ops.h>
#include <terrace/offload/store/extent_files.h>

namespace terrace::io {
namespace {

class FileOpsWithDeadline final : public FileOps {
 public:
  FileOpsWithDeadline(std::shared_ptr<FileOps> inner, std::chrono::nanoseconds deadline)
      : inner_(std::move(inner)), deadline_(deadline) {}

  int create(int directory, const std::string& name) override {
    return number_within(directory, [name](FileOps& ops, int own) { return ops.create(own, name); });
  }
  // Reads into memory of its own: after the deadline the caller's memory may be gone.
  std::int64_t read(int file, std::span<std::byte> to) override {
    const auto own_bytes = std::make_shared<std::vector<std::byte>>(to.size());
    const auto count = within(file, [own_bytes](FileOps& ops, int own) { return ops.read(own, *own_bytes); });
    if (count > 0) std::copy_n(own_bytes->begin(), count, to.begin());
    return count;
  }
  std::int64_t write(int file, std::span<const std::byte> bytes) override {
    std::vector<std::byte> copy(bytes.begin(), bytes.end());
    return within(file, [copy = std::move(copy)](FileOps& ops, int own) { return ops.write(own, copy); });
  }
  int sync(int file) override {
    return number_within(file, [](FileOps& ops, int own) { return ops.sync(own); });
  }
  int rename(int directory, const std::string& from, const std::string& to) override {
    return number_within(directory, [from, to](FileOps& ops, int own) { return ops.rename(own, from, to); });
  }
  int remove(int directory, const std::string& name) override {
    return number_within(directory, [name](FileOps& ops, int own) { return ops.remove(own, name); });
  }
  int allocate(int file, std::uint64_t bytes) override {
    return number_within(file, [bytes](FileOps& ops, int own) { return ops.allocate(own, bytes); });
  }
  int switch_off_copy_on_write(int file) override {
    return number_within(file, [](FileOps& ops, int own) { return ops.switch_off_copy_on_write(own); });
  }

 private:
  using Call = std::function<std::int64_t(FileOps&, int own)>;

  // Makes the call on a detached thread with its own descriptor: if the owner closed a shared descriptor meanwhile, its number
  // could be reused for another file.
  std::int64_t within(int file, Call call) try {
    files::FileHandle own(::fcntl(file, F_DUPFD_CLOEXEC, 0));
    if (!own) return -errno;
    std::packaged_task<std::int64_t()> task([inner = inner_, own = std::move(own), call = std::move(call)]() mutable {
      const auto result = call(*inner, own.get());
      own = files::FileHandle();  // closed before the result is reported, so that the caller then finds no open descriptor
      return result;
    });
    auto result = task.get_future();
    std::thread(std::move(task)).detach();
    return result.wait_for(deadline_) == std::future_status::timeout ? -ETIME : result.get();
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  } catch (const std::system_error& no_thread) {
    return -no_thread.code().value();
  }
  int number_within(int file, Call call) { return static_cast<int>(within(file, std::move(call))); }

  const std::shared_ptr<FileOps> inner_;
  const std::chrono::nanoseconds deadline_;
};

}  // namespace

std::shared_ptr<FileOps> with_deadline(std::shared_ptr<FileOps> inner, std::chrono::nanoseconds deadline) {
  return std::make_shared<FileOpsWithDeadline>(std::move(inner), deadline);
}

}  // namespace terrace::io
