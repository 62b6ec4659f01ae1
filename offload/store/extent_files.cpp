#include <terrace/offload/store/extent_files.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/file_lock.h>
#include <terrace/core/base/folders.h>
#include <terrace/core/base/units.h>
#include <terrace/offload/io/direct_io.h>
#include <terrace/offload/io/file_system.h>
#include <terrace/offload/store/dead_stores.h>
#include <terrace/offload/store/path_speed.h>

namespace terrace::store {
namespace {

constexpr int kSafeFlags = O_CLOEXEC | O_NOFOLLOW;
// A measurement with fewer bytes is too noisy, and in a small store striping by speed gains little.
constexpr std::uint64_t kMeasuredBytes = 64 * kMiB, kWorthMeasuring = kGiB;

// The remedy for an errno.
const char* advice(int error_number) {
  switch (error_number) {
    case ELOOP:
    case ENOTDIR: return "symbolic links are not followed here, and a file is not a folder: give the folder itself";
    case ENOSPC:
    case EDQUOT: return "free some space there, then `resume` auto";
    case ETIME: return "the disk did not answer in time: check it (dmesg), or raise `io-deadline`; then `resume` auto";
    case EACCES:
    case EPERM: return "fix the permissions there, run as its owner, or give a writable folder; then `resume` auto";
    case EEXIST: return "something that terrace did not leave there has the name of its file: remove it, then `resume` auto";
    case EFBIG: return "raise the limit on file sizes (ulimit -f unlimited)";
    default: return "give a writable folder, or check the disk, then `resume` auto";
  }
}

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& operation, int error_number) {
  throw errno_error(error_number, path.string(), fmt::format("{}: {}", path.string(), operation), advice(error_number));
}

// A file of a commit is missing: no retry helps.
[[noreturn]] void fail_as_lost(const std::filesystem::path& path, const std::string& what) {
  throw Error(fmt::format("{}: {}\n  bring it back, or go back to an exported checkpoint", path.string(), what),
              ErrorKind::corrupt, {.path = path.string()});
}

// Opens a file of the store, without following a link; empty, with errno, if the system refuses.
files::FileHandle open_file(int directory, const std::filesystem::path& path, int flags) try {
  return files::open_regular(path.filename(), flags | kSafeFlags, directory, io::kStoreFileMode);
} catch (const Error& error) {
  fail_as_lost(path, error.what());
}

// Transfers all bytes or throws; `transfer` returns how many bytes one system call moved.
template <class Transfer>
void move_all(const std::filesystem::path& path, const char* operation, std::uint64_t bytes, Transfer transfer) {
  for (std::uint64_t at = 0; at < bytes;) {
    const ssize_t moved = transfer(at);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) fail(path, operation, errno);
    if (moved == 0) fail(path, operation, ENODATA);
    at += static_cast<std::uint64_t>(moved);
  }
}

std::shared_ptr<io::FileOps> file_ops_of(const ChunkStore::Options& options) {
  auto ops = options.file_ops ? options.file_ops : io::make_file_ops();
  return options.deadline.count() > 0 ? io::with_deadline(std::move(ops), options.deadline) : std::move(ops);
}

void warn_when_no_disk(const Log& log, const std::filesystem::path& path) {
  const auto name = io::file_system_of(path).name;
  const bool overlay = name == "overlay";
  if (!overlay && name != "tmpfs" && name != "ramfs") return;
  log.warn(fmt::format("{} is not on a disk but in {}; give a directory on the disk itself", path.string(),
                       overlay ? "a container's overlay" : "memory"));
}

}  // namespace

ExtentFiles::ExtentFiles(const ChunkStore::Options& options, Mode mode)
    : options_(options), ops_(file_ops_of(options)), stripes_(options.stripe_bytes, {1}) {
  if (options_.paths.empty()) throw Error("a chunk store needs at least one path", ErrorKind::refused);
  if (options_.name.empty() || options_.name.find('/') != std::string::npos || options_.name.front() == '.') {
    throw Error(fmt::format("'{}' is not a valid name of a chunk store: it must not be empty, begin with '.' or contain '/'",
                            options_.name),
                ErrorKind::refused);
  }
  for (const auto& path : options_.paths) {
    if (mode == Mode::fresh) remove_dead_temporaries(path);
    Place& place = places_.emplace_back();
    while (!open_directory(place, path, mode) || !lock_directory(place, mode)) {
    }
  }
  if (mode == Mode::existing)
    for (auto& place : places_) open_data(place, options_.read_only ? O_RDONLY : O_RDWR);
}

ExtentFiles::~ExtentFiles() {
  if (!options_.temporary) return;
  for (const auto& place : places_) {  // still locked: no other process uses it
    ::unlinkat(place.directory_handle.get(), kLockName, 0);
    ::rmdir(place.directory.c_str());
  }
}

// Until it is locked, a temporary store's folder may be removed by another process that cleans up after dead runs: then it is
// made again.
bool ExtentFiles::open_directory(Place& place, const std::filesystem::path& path, Mode mode) const {
  place.directory = path / (options_.temporary ? options_.name + kTemporarySuffix : options_.name);
  if (mode == Mode::fresh) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) fail(path, "the directory could not be made", error.value());
    if (::mkdir(place.directory.c_str(), io::kStoreDirectoryMode) != 0 && errno != EEXIST) {
      fail(place.directory, "the directory could not be made", errno);
    }
  }
  place.directory_handle = files::FileHandle(::open(place.directory.c_str(), O_RDONLY | O_DIRECTORY | kSafeFlags));
  if (!place.directory_handle && errno == ENOENT && options_.temporary) return false;
  if (!place.directory_handle && errno == ENOENT) fail_as_lost(place.directory, "the directory is missing");
  if (!place.directory_handle) fail(place.directory, "the directory could not be opened", errno);
  struct stat info {};
  if (::fstat(place.directory_handle.get(), &info) != 0) fail(place.directory, "stat", errno);
  if (options_.read_only) return true;
  if (info.st_uid != ::geteuid()) fail(place.directory, "the directory belongs to another user", EPERM);
  constexpr mode_t kTooMuch = 0777 & ~io::kStoreDirectoryMode;  // a stricter mode and the set-group-ID bit stay
  if ((info.st_mode & kTooMuch) != 0 && ::fchmod(place.directory_handle.get(), info.st_mode & 07777 & ~kTooMuch) != 0) {
    fail(place.directory, "chmod", errno);
  }
  return true;
}

// Refuses a path given twice: otherwise the lock of the second one would be found taken, by this store itself.
void ExtentFiles::demand_another(const Place& place) const {
  const auto identity = [](const Place& p) {
    struct stat info {};
    if (::fstat(p.directory_handle.get(), &info) != 0) fail(p.directory, "stat", errno);
    return std::pair(info.st_dev, info.st_ino);
  };
  for (const auto& other : places_)
    if (&other != &place && identity(other) == identity(place))
      throw Error(
          fmt::format(
              "the path {} is given more than once{}\n  give each path once; every path must be on a separate disk",
              place.directory.parent_path().string(),
              other.directory == place.directory ? "" : fmt::format(", as {} too", other.directory.parent_path().string())),
          ErrorKind::refused);
}

// A temporary store that ends between this open and this lock may remove the lock file: then a new one is made.
bool ExtentFiles::lock_directory(Place& place, Mode mode) const {
  demand_another(place);
  constexpr int kAttempts = 100;
  int attempts = 0;
  for (;;) {
    const int directory = place.directory_handle.get();
    // A reader shares the lock with other readers. Without a lock file, no process can be writing.
    const int flags = options_.read_only ? O_RDONLY | O_NONBLOCK : O_RDWR | O_CREAT | O_NONBLOCK;
    place.lock = files::FileHandle(::openat(directory, kLockName, flags | kSafeFlags, io::kStoreFileMode));
    if (!place.lock && errno == ENOENT && options_.read_only) return true;
    if (!place.lock && errno == ENOENT && options_.temporary) return false;
    if (!place.lock) fail(place.directory / kLockName, "the lock file could not be opened", errno);
    const auto locked = files::try_lock(place.lock.get(), options_.read_only ? LOCK_SH : LOCK_EX);
    if (locked == files::Locked::impossible) files::warn_without_locks(options_.io.log, place.directory / kLockName);
    if (locked == files::Locked::by_another) {
      if (options_.temporary && ++attempts < kAttempts) {  // a store that is just ending holds it
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      throw Error(fmt::format("{} is in use by another run\n  wait for it or stop it{}", place.directory.string(),
                              mode == Mode::fresh ? ", or give another `nvme-path`" : ""),
                  ErrorKind::failed, {.code = code_of_errno(EWOULDBLOCK), .path = place.directory.string()});
    }
    struct stat held {
    }, named{};
    if (::fstat(place.lock.get(), &held) == 0 && ::fstatat(directory, kLockName, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
        held.st_ino == named.st_ino) {
      return true;
    }
  }
}

void ExtentFiles::make_data() {
  for (auto& place : places_) {
    const int directory = place.directory_handle.get();
    if (::unlinkat(directory, kDataName, 0) != 0 && errno != ENOENT) fail(place.directory / kDataName, "unlink", errno);
    open_data(place, O_RDWR | O_CREAT | O_EXCL);
    warn_when_no_disk(options_.io.log, place.directory);
    // Without a name its space is freed even if this process is killed.
    if (options_.temporary && ::unlinkat(directory, kDataName, 0) != 0) fail(place.directory / kDataName, "unlink", errno);
  }
  if (options_.durable && !options_.temporary) sync_new_names();
}

files::FileHandle ExtentFiles::make_nameless() const {
  const files::FileHandle made(files::create_nameless(options_.paths.front()));
  if (!made) return {};
  static_cast<void>(ops_->switch_off_copy_on_write(made.get()));
  return io::open_again_direct(made.get());
}

void ExtentFiles::open_data(Place& place, int flags) const {
  const int directory = place.directory_handle.get();
  place.data = open_file(directory, place.directory / kDataName, flags | O_DIRECT);
  const bool refused = place.data ? !io::pages_suffice(io::direct_io_rules(place.data.get())) : errno == EINVAL;
  if (refused) {
    options_.io.log.warn(fmt::format("{} does not allow direct I/O; the page cache will use host memory and cost time",
                                     place.directory.string()));
    place.data = open_file(directory, place.directory / kDataName, flags & ~O_EXCL);
  }
  if (!place.data && errno == ENOENT) fail_as_lost(place.directory / kDataName, "the file is missing");
  if (!place.data) fail(place.directory / kDataName, "the data file could not be opened", errno);
  if (options_.read_only) return;
  if (const int result = ops_->switch_off_copy_on_write(place.data.get()); result < 0)
    options_.io.log.warn(
        fmt::format("{} has copy-on-write, which cannot be switched off there: {}; btrfs then writes through the page cache, "
                    "which uses host memory and costs time",
                    (place.directory / kDataName).string(), describe_errno(-result)));
}

// Syncs the new folders and the names in them; commits sync the names that are added later.
void ExtentFiles::sync_new_names() const {
  for (const auto& place : places_)
    for (const auto& folder : files::with_folders_above(place.directory))
      if (const int result = ops_->sync(folder.get()); result < 0 && result != -EINVAL)  // -EINVAL: cannot be synced
        fail(place.directory, "the new folder could not be synced", -result);
}

Stripes ExtentFiles::fresh_stripes() const {
  const auto stripe_bytes = options_.stripe_bytes;
  if (stripe_bytes == 0 || stripe_bytes % kPageBytes != 0) {
    throw Error(fmt::format("a stripe has {} bytes; it must be a positive multiple of {}", stripe_bytes, kPageBytes),
                ErrorKind::refused);
  }
  auto weights = options_.stripe_weights;
  if (weights.empty() && places_.size() > 1 && options_.capacity_bytes >= kWorthMeasuring) {
    weights = Stripes::weights_of(measure_paths(descriptors(), kMeasuredBytes));
    for (const auto& place : places_)  // the space is reserved afterwards, all or nothing
      if (::ftruncate(place.data.get(), 0) != 0) fail(place.directory / kDataName, "truncate", errno);
  }
  if (weights.empty()) weights.assign(places_.size(), 1);
  const auto possible = [](std::uint32_t weight) { return weight >= 1 && weight <= Stripes::kMostWeight; };
  if (weights.size() != places_.size() || !std::ranges::all_of(weights, possible)) {
    throw Error(fmt::format("stripe weights: each path needs one from 1 to {}", Stripes::kMostWeight), ErrorKind::refused);
  }
  return {stripe_bytes, std::move(weights)};
}

void ExtentFiles::reserve(std::uint64_t capacity_bytes, Stripes stripes) {
  stripes_ = std::move(stripes);
  if (capacity_bytes == kUnlimited) return;  // no cap and no preallocation: the files grow as they are written
  for (std::size_t f = 0; f < places_.size(); ++f)
    reserve_file(places_[f], stripes_.file_bytes(f, round_up(capacity_bytes, kPageBytes)));
}

void ExtentFiles::trim(std::uint64_t capacity_bytes) const {
  if (capacity_bytes == kUnlimited) return;
  for (std::size_t f = 0; f < places_.size(); ++f) {
    const auto& place = places_[f];
    const auto bytes = stripes_.file_bytes(f, round_up(capacity_bytes, kPageBytes));
    struct stat info {};
    if (::fstat(place.data.get(), &info) != 0) fail(data_path(static_cast<int>(f)), "stat", errno);
    if (static_cast<std::uint64_t>(info.st_size) <= bytes) continue;
    if (::ftruncate(place.data.get(), static_cast<off_t>(bytes)) != 0) fail(data_path(static_cast<int>(f)), "truncate", errno);
  }
}

// Free space is checked before it is reserved, because a completely full file system harms all its users.
void ExtentFiles::reserve_file(const Place& place, std::uint64_t bytes) const {
  const auto path = place.directory / kDataName;
  struct stat info {};
  struct statvfs system {};
  if (::fstat(place.data.get(), &info) != 0) fail(path, "stat", errno);
  if (::fstatvfs(place.data.get(), &system) != 0) fail(path, "statvfs", errno);
  const auto has = static_cast<std::uint64_t>(info.st_size);
  if (bytes <= has) return;
  const auto needed = bytes - std::min(bytes, static_cast<std::uint64_t>(info.st_blocks) * 512);
  const auto free = static_cast<std::uint64_t>(system.f_bavail) * system.f_frsize;
  const auto refuse = [&] {
    throw Error(
        fmt::format("{}: not enough space: {} bytes ({}) are needed, {} bytes ({}) are free\n  free {} there, or give a folder "
                    "on a larger disk",
                    path.string(), needed, format_bytes(needed), free, format_bytes(free),
                    format_bytes(needed - std::min(needed, free))),
        ErrorKind::does_not_fit, {.code = code_of_errno(ENOSPC), .path = path.string()});
  };
  if (needed > free) refuse();
  int result = -ops_->allocate(place.data.get(), bytes);
  if (result == ENOSPC) refuse();
  if (result == EOPNOTSUPP) {
    options_.io.log.warn(
        fmt::format("{} cannot reserve space; a later write may fail because the disk is full", path.string()));
    result = ::ftruncate(place.data.get(), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  }
  if (result != 0) fail(path, fmt::format("{} bytes could not be reserved", bytes), result);
  if (::fstat(place.data.get(), &info) != 0) fail(path, "stat", errno);
  if (static_cast<std::uint64_t>(info.st_size) < bytes)  // the allocation reported success wrongly
    fail(path, fmt::format("{} bytes were reserved, but the file has {}", bytes, info.st_size), EIO);
}

std::vector<int> ExtentFiles::descriptors() const {
  std::vector<int> all;
  for (const auto& place : places_) all.push_back(place.data.get());
  return all;
}

std::filesystem::path ExtentFiles::data_path(int file) const {
  return places_[static_cast<std::size_t>(file)].directory / kDataName;
}

std::uint64_t ExtentFiles::allocated_bytes() const {
  std::uint64_t total = 0;
  for (const auto& place : places_) {
    struct stat info {};
    if (::fstat(place.data.get(), &info) == 0) total += static_cast<std::uint64_t>(info.st_blocks) * 512;
  }
  return total;
}

std::uint64_t ExtentFiles::free_bytes(int file) const {
  struct statvfs system {};
  if (::fstatvfs(places_[static_cast<std::size_t>(file)].data.get(), &system) != 0) return 0;
  return static_cast<std::uint64_t>(system.f_bavail) * system.f_frsize;
}

// Through a small aligned buffer, because direct I/O requires one and the caller's bytes may have any address.
void ExtentFiles::read(std::uint64_t offset, std::span<std::byte> to) const {
  constexpr std::uint64_t kBounceBytes = 4 * kMiB;
  const std::unique_ptr<void, decltype(&std::free)> bounce(std::aligned_alloc(kPageBytes, kBounceBytes), &std::free);
  if (!bounce) throw std::bad_alloc();
  for (const auto& piece : stripes_.pieces(offset, round_up(to.size(), kPageBytes))) {
    const auto& place = places_[static_cast<std::size_t>(piece.file)];
    struct stat info {};
    if (::fstat(place.data.get(), &info) != 0) fail(data_path(piece.file), "stat", errno);
    if (static_cast<std::uint64_t>(info.st_size) < piece.offset + piece.bytes)
      fail_as_lost(data_path(piece.file), fmt::format("the file was cut short: it has {} bytes, and a chunk ends at byte {}",
                                                      info.st_size, piece.offset + piece.bytes));
    for (std::uint64_t done = 0; done < piece.bytes; done += kBounceBytes) {
      const auto bytes = std::min(kBounceBytes, piece.bytes - done);
      move_all(data_path(piece.file), "read", bytes, [&](std::uint64_t at) {
        return ::pread(place.data.get(), static_cast<std::byte*>(bounce.get()) + at, bytes - at,
                       static_cast<off_t>(piece.offset + done + at));
      });
      const auto into = piece.at + done;
      if (into < to.size()) std::memcpy(to.data() + into, bounce.get(), std::min<std::uint64_t>(bytes, to.size() - into));
    }
  }
}

void ExtentFiles::sync() const {
  for (std::size_t f = 0; f < places_.size(); ++f) {
    if (const int result = ops_->sync(places_[f].data.get()); result < 0) {
      fail(data_path(static_cast<int>(f)), "disk tier, the written data could not be synced", -result);
    }
  }
}

void ExtentFiles::write_small(std::span<const std::string> names, const std::string& text, bool durable) const {
  const int directory = places_.front().directory_handle.get();
  const auto temporary = [](const std::string& name) { return name + ".tmp"; };
  const auto check = [&](const std::string& name, const char* operation, std::int64_t result) {
    if (result == -EEXIST) fail(small_path(temporary(name)), operation, EEXIST);
    if (result < 0) fail(small_path(name), operation, static_cast<int>(-result));
    return static_cast<std::uint64_t>(result);
  };
  for (const auto& name : names) {
    const files::FileHandle file(
        static_cast<int>(check(name, "the file could not be made", ops_->create(directory, temporary(name)))));
    const auto bytes = std::as_bytes(std::span(text));
    for (std::uint64_t at = 0; at < bytes.size();) {
      const auto written = check(name, "the file could not be written", ops_->write(file.get(), bytes.subspan(at)));
      if (written == 0) fail(small_path(name), fmt::format("the file could not be written beyond byte {}", at), ENOSPC);
      at += written;
    }
    if (durable) check(name, "the file could not be synced", ops_->sync(file.get()));
  }
  for (const auto& name : names) check(name, "the file could not be renamed", ops_->rename(directory, temporary(name), name));
  if (durable) check(names.front(), "its folder could not be synced", ops_->sync(directory));
}

ExtentFiles::Found ExtentFiles::read_small(const std::string& name, std::string& text) const {
  const auto path = small_path(name);
  const files::FileHandle file = open_file(places_.front().directory_handle.get(), path, O_RDONLY);
  if (!file && errno == ENOENT) return Found::absent;
  if (!file) fail(path, "the file could not be opened", errno);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) fail(path, "stat", errno);
  text.resize(static_cast<std::size_t>(info.st_size));
  const auto bytes = std::as_writable_bytes(std::span(text));
  for (std::uint64_t at = 0; at < bytes.size();) {
    const auto count = ops_->read(file.get(), bytes.subspan(at));
    if (count <= 0) fail(path, "read", count < 0 ? static_cast<int>(-count) : ENODATA);
    at += static_cast<std::uint64_t>(count);
  }
  return Found::read;
}

void ExtentFiles::remove_small(const std::string& name) const {
  const int result = ops_->remove(places_.front().directory_handle.get(), name);
  if (result < 0 && result != -ENOENT) fail(small_path(name), "the file could not be removed", -result);
}

void ExtentFiles::sync_folder() const {
  const auto& home = places_.front();
  if (const int result = ops_->sync(home.directory_handle.get()); result < 0)
    fail(home.directory, "the folder could not be synced", -result);
}

std::vector<std::string> ExtentFiles::names() const {
  std::vector<std::string> all;
  for (const auto& entry : files::entries_of(places_.front().directory)) all.push_back(entry.path().filename().string());
  return all;
}

std::filesystem::path ExtentFiles::small_path(const std::string& name) const { return places_.front().directory / name; }

}  // namespace terrace::store
