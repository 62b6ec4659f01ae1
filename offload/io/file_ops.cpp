#include <terrace/offload/io/file_ops.h>

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include <terrace/core/base/files.h>

namespace terrace::io {
namespace {

template <class Call>
auto retried(Call call) -> decltype(call()) {
  for (;;) {
    const auto result = call();
    if (result >= 0) return result;
    if (errno != EINTR) return -errno;
  }
}

class KernelFileOps final : public FileOps {
 public:
  int create(int directory, const std::string& name) override {
    return files::create_temporary(directory, name, kStoreFileMode);
  }
  std::int64_t read(int file, std::span<std::byte> to) override {
    return retried([&] { return ::read(file, to.data(), to.size()); });
  }
  std::int64_t write(int file, std::span<const std::byte> bytes) override {
    return retried([&] { return ::write(file, bytes.data(), bytes.size()); });
  }
  // Not fdatasync: for a directory it may leave out a rename (ext4).
  int sync(int file) override {
    return retried([&] { return ::fsync(file); });
  }
  int rename(int directory, const std::string& from, const std::string& to) override {
    return retried([&] { return ::renameat(directory, from.c_str(), directory, to.c_str()); });
  }
  int remove(int directory, const std::string& name) override {
    return retried([&] { return ::unlinkat(directory, name.c_str(), 0); });
  }
  int allocate(int file, std::uint64_t bytes) override {
    return retried([&] { return ::fallocate(file, 0, 0, static_cast<off_t>(bytes)); });
  }
  int switch_off_copy_on_write(int file) override {
    struct statfs system {};
    if (::fstatfs(file, &system) != 0) return -errno;
    if (system.f_type != BTRFS_SUPER_MAGIC) return 0;
    unsigned flags = 0;  // 32 bits, although the request's macro says long
    const auto is_off = [&] { return (flags & FS_NOCOW_FL) != 0; };
    const auto ask = [&](unsigned long request) { return retried([&] { return ::ioctl(file, request, &flags); }); };
    if (const int result = ask(FS_IOC_GETFLAGS); result < 0 || is_off()) return result;
    flags |= FS_NOCOW_FL;
    if (const int result = ask(FS_IOC_SETFLAGS); result < 0) return result;
    const int result = ask(FS_IOC_GETFLAGS);  // for a file that is not empty, the call above succeeds and changes nothing
    return result < 0 || is_off() ? result : -EOPNOTSUPP;
  }
};

}  // namespace

std::shared_ptr<FileOps> make_file_ops() { return std::make_shared<KernelFileOps>(); }

}  // namespace terrace::io
