#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <exception>
#include <mutex>
#include <span>
#include <thread>

#include <fmt/format.h>
#include <xxhash.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/trace.h>
#include <terrace/core/base/units.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/core/machine/machine.h>
#include <terrace/core/math/math.h>
#include <terrace/core/math/philox.h>
#include <terrace/core/math/typical_numbers.h>
#include <terrace/core/math/views.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr int kRuns = 5;              // every figure is the median of this many runs
constexpr double kLeastShare = 0.05;  // a smaller share is caused by other load on the machine, not by the copies
constexpr int kDiskThreads = 4;
constexpr std::size_t kDiskBlockBytes = 8 * kMiB;
constexpr std::uint64_t kDiskFileBytes = 512 * kMiB;
// Transfers cycle through this much memory, for reads and for writes each, as those of a host tier do: if only a few blocks
// were used again and again, they would stay in the processor's cache, where a virtual disk copies a third faster.
constexpr std::uint64_t kDiskMemoryBytes = 128 * kMiB;

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

double seconds_since(std::int64_t begin_ns) {
  return static_cast<double>(std::max<std::int64_t>(now_ns() - begin_ns, 1)) * 1e-9;
}

// A temporary file without a name, which never outlives the process.
class ScratchFile {
 public:
  explicit ScratchFile(const fs::path& directory) : directory_(directory) {
    auto name = (directory / "terrace-profile-XXXXXX").string();
    fd_ = mkostemp(name.data(), O_DIRECT | O_CLOEXEC);
    if (fd_ < 0 && errno == EINVAL) {  // a file system without direct I/O
      name = (directory / "terrace-profile-XXXXXX").string();
      fd_ = mkostemp(name.data(), O_CLOEXEC);
      direct_ = false;
    }
    if (fd_ < 0)
      throw errno_error(errno, directory.string(), fmt::format("no file can be created in {}", directory.string()),
                        "fix the permissions there, or give another `nvme-path`");
    ::unlink(name.c_str());
    struct statvfs space {};
    std::uint64_t room = kDiskFileBytes;
    if (fstatvfs(fd_, &space) == 0) room = std::min(room, std::uint64_t{space.f_bavail} * space.f_frsize / 2);
    blocks_ = std::max<std::uint64_t>(room / kDiskBlockBytes, 1);
  }
  ~ScratchFile() { ::close(fd_); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  void write(const std::byte* from, std::uint64_t turn) {
    const auto block = turn % blocks_;
    whole("written", block, [&](std::size_t done, off_t at) { return ::pwrite(fd_, from + done, kDiskBlockBytes - done, at); });
    // The highest block so far, not a count of writes: every run begins at block 0 again, so a count would exceed the file.
    for (auto seen = written_.load(); seen < block + 1 && !written_.compare_exchange_weak(seen, block + 1);) {
    }
  }
  // Reads only written blocks: a run writes blocks in order and ends when all are written, so there is no gap.
  void read(std::byte* to, std::uint64_t turn) const {
    const auto block = turn % std::max<std::uint64_t>(written_.load(), 1);
    whole("read", block, [&](std::size_t done, off_t at) { return ::pread(fd_, to + done, kDiskBlockBytes - done, at); });
  }
  double small_read_seconds(std::byte* to, std::uint64_t turn) const {
    const auto pages = written_.load() * (kDiskBlockBytes / kPageBytes);
    const auto page = math::random_below(1, 0, turn, std::max<std::uint64_t>(pages, 1));
    const auto begin = now_ns();
    const auto n = ::pread(fd_, to, kPageBytes, static_cast<off_t>(page * kPageBytes));
    if (n != static_cast<ssize_t>(kPageBytes)) fail("read", n < 0 ? errno : EIO);
    return seconds_since(begin);
  }
  // Buffered writes have to reach the disk to count, and buffered reads must not come from memory.
  void settle() const {
    if (::fdatasync(fd_) != 0) fail("written", errno);
    if (!direct_) ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
  }

 private:
  [[noreturn]] void fail(const char* what, int error) const {
    throw errno_error(error, directory_.string(),
                      fmt::format("a temporary file in {} cannot be {}", directory_.string(), what));
  }
  template <class Transfer>
  void whole(const char* what, std::uint64_t block, const Transfer& transfer) const {
    for (std::size_t done = 0; done < kDiskBlockBytes;) {
      const auto n = transfer(done, static_cast<off_t>(block * kDiskBlockBytes + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail(what, errno);
      if (n == 0) fail(what, EIO);
      done += static_cast<std::size_t>(n);
    }
  }

  fs::path directory_;
  int fd_ = -1;
  bool direct_ = true;
  std::uint64_t blocks_ = 1;
  std::atomic<std::uint64_t> written_{0};  // blocks from the file's beginning
};

// Bytes per second of `transfer(file, block in memory, turn)` on all files at once, measured for about `seconds`. Meanwhile,
// this thread runs `beside(busy)`, which returns when busy() is false.
template <class Transfer, class Beside>
double disk_rate(std::vector<std::unique_ptr<ScratchFile>>& files, std::span<std::byte> memory, double seconds,
                 const Transfer& transfer, const Beside& beside) {
  const auto count = files.size() * kDiskThreads;
  std::vector<std::atomic<std::uint64_t>> turns(files.size());
  std::atomic<std::uint64_t> blocks{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto begin = now_ns();
  const auto busy = [&] { return seconds_since(begin) < seconds; };
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < count; ++t) {
      threads.emplace_back([&, t] {
        const auto file = t / kDiskThreads;
        auto place = t;  // the thread's block; no two threads share one, because their number divides the number of blocks
        try {
          do {
            transfer(*files[file], memory.data() + place * kDiskBlockBytes, turns[file].fetch_add(1));
            blocks.fetch_add(1);
            place = (place + count) % (memory.size() / kDiskBlockBytes);
          } while (busy());
        } catch (...) {
          const std::lock_guard lock(mutex);
          error = std::current_exception();
        }
      });
    }
    beside(busy);
  }
  if (error) std::rethrow_exception(error);
  for (const auto& file : files) file->settle();
  return static_cast<double>(blocks.load() * kDiskBlockBytes) / seconds_since(begin);
}

// A square product in one dtype, ready to be submitted. e4m3: of bf16, which the first one rounds.
class Product {
 public:
  Product(Device& device, DType of, std::int64_t n) : math_(device.math()), n_(n) {
    const auto dtype = is_float8(of) ? DType::bf16 : of;
    const auto bytes = static_cast<std::size_t>(n * n) * size_of(dtype);
    slab_ = device.memory().allocate((is_float8(of) ? 4 : 3) * bytes + 2 * sizeof(float));
    math::fill_with_typical_numbers(device, {slab_.data(), slab_.bytes()});
    a_ = {slab_.data(), dtype, {n, n}};
    b_ = {slab_.data() + bytes, dtype, {n, n}};
    c_ = {slab_.data() + 2 * bytes, dtype, {n, n}};
    if (!is_float8(of)) return;
    a_codes_ = {slab_.data() + 3 * bytes, of, {n, n}};
    b_codes_ = {a_codes_.data + a_codes_.bytes(), of, {n, n}};
    scales_ = {slab_.data() + 4 * bytes, DType::fp32, {2}};
  }
  void submit(Stream& stream) {
    if (scales_.empty()) return math_.matmul(stream, c_, a_, Transpose::no, b_, Transpose::no);
    const auto a_scale = math::part(scales_, 0, {1}), b_scale = math::part(scales_, 1, {1});
    if (!rounded_) {
      math_.quantise(stream, a_codes_, {}, a_scale, a_);
      math_.quantise(stream, {}, b_codes_, b_scale, b_);
      rounded_ = true;
    }
    math_.matmul_float8(stream, c_, a_codes_, b_codes_, a_scale, b_scale);
  }
  [[nodiscard]] double flop() const {
    return 2.0 * static_cast<double>(n_) * static_cast<double>(n_) * static_cast<double>(n_);
  }

 private:
  Math& math_;
  std::int64_t n_;
  Slab slab_;
  TensorView a_, b_, c_;
  TensorView a_codes_, b_codes_, scales_;  // for numbers of 8 bits
  bool rounded_ = false;
};

double measure_matmul(Device& device, DType dtype, std::int64_t n, double seconds) {
  const auto stream = device.make_stream("profile");
  Product product(device, dtype, n);
  product.submit(*stream);  // the first one builds the kernel
  stream->synchronize();
  std::vector<double> rates;
  const auto begin = now_ns();
  while (rates.size() < kRuns || seconds_since(begin) < seconds) {
    const auto run_begin = now_ns();
    product.submit(*stream);
    stream->synchronize();
    rates.push_back(product.flop() / seconds_since(run_begin));
  }
  return median(rates);
}

// The edge of a product that keeps a GPU busy: twice as long until it takes milliseconds.
std::int64_t edge_for(Device& device, DType dtype, std::int64_t least, std::int64_t most) {
  constexpr double kBusyForS = 5e-3;
  const auto stream = device.make_stream("profile");
  for (auto n = least; n < most; n *= 2) {
    Product product(device, dtype, n);
    product.submit(*stream);  // the first one builds the kernel
    stream->synchronize();
    const auto begin = now_ns();
    product.submit(*stream);
    stream->synchronize();
    if (seconds_since(begin) > kBusyForS) return n;
  }
  return most;
}

// Runs products on a separate stream while something else runs, as in a step that computes and moves data at the same time.
class Background {
 public:
  explicit Background(Device& device) : product_(device, DType::fp32, 512), stream_(device.make_stream("profile")) {
    product_.submit(*stream_);
    stream_->synchronize();
  }
  // Products per second while `busy` returns true; runs at least one.
  template <class Busy>
  double rate_while(const Busy& busy) {
    const auto begin = now_ns();
    int products = 0;
    do {
      product_.submit(*stream_);
      stream_->synchronize();
      ++products;
    } while (busy());
    return products / seconds_since(begin);
  }
  double rate_alone(double seconds) {
    const auto begin = now_ns();
    return rate_while([&] { return seconds_since(begin) < seconds; });
  }

 private:
  Product product_;
  std::unique_ptr<Stream> stream_;
};

void measure_disk(MachineProfile& profile, Device& device, const std::vector<fs::path>& paths, double seconds) {
  if (paths.empty()) return;
  std::vector<std::unique_ptr<ScratchFile>> files;
  for (const auto& path : paths) files.push_back(std::make_unique<ScratchFile>(path));
  const auto bytes = round_up(kDiskMemoryBytes, files.size() * kDiskThreads * kDiskBlockBytes);
  const Slab slab = device.memory().allocate(2 * bytes);
  const std::span to_read(slab.data(), bytes), to_write(slab.data() + bytes, bytes);
  // Random bytes, so that a disk that compresses does not look faster than it is.
  math::fill_normal(reinterpret_cast<float*>(to_write.data()), static_cast<std::int64_t>(bytes / sizeof(float)), 1, 1, 0, 1.0);

  // A transfer includes the checksums of the store: they take time on the cores that compute.
  std::atomic<std::uint64_t> checksum{0};
  const auto hash = [&](const std::byte* block) { checksum.fetch_xor(XXH3_64bits(block, kDiskBlockBytes)); };
  const auto write = [&](ScratchFile& file, std::byte* buffer, std::uint64_t turn) {
    hash(buffer);
    file.write(buffer, turn);
  };
  const auto read = [&](ScratchFile& file, std::byte* buffer, std::uint64_t turn) {
    file.read(buffer, turn);
    hash(buffer);
  };
  const auto nothing = [](const auto&) {};
  Background compute(device);

  std::vector<double> writes, reads, both, latencies, shares;
  const double slice = seconds / (4 * kRuns);
  for (int run = 0; run < kRuns; ++run) writes.push_back(disk_rate(files, to_write, slice, write, nothing));
  for (int run = 0; run < kRuns; ++run) {
    reads.push_back(disk_rate(files, to_read, slice, read, nothing));
    double written = 0;
    const double read_beside = disk_rate(files, to_read, slice, read,
                                         [&](const auto&) { written = disk_rate(files, to_write, slice, write, nothing); });
    both.push_back(read_beside + written);
    const double alone = compute.rate_alone(slice / 2);
    const auto share = [&](const auto& busy) { shares.push_back(std::min(1.0, compute.rate_while(busy) / alone)); };
    disk_rate(files, to_read, slice / 4, read, share);
    disk_rate(files, to_write, slice / 4, write, share);
  }
  for (std::uint64_t turn = 0; turn < 65; ++turn) latencies.push_back(files.front()->small_read_seconds(to_read.data(), turn));
  profile.disk_assumed = false;
  profile.disk_write = median(writes);
  profile.disk_read = median(reads);
  profile.disk_both = median(both);
  profile.disk_latency_s = median(latencies);
  profile.compute_beside_disk = median(shares);
}

// Measures copies like those of the executor's upload lane: one from time to time, while another stream computes. A thread that
// wakes up takes a core at once and keeps it for the length of a copy; so a second of such copies costs more computing than one
// long copy, which the scheduler interrupts fairly.
void measure_copy(MachineProfile& profile, Device& device, double seconds) {
  constexpr std::size_t kCopyBytes = kMiB, kCopies = 64;
  const Slab from = device.memory().allocate(kCopies * kCopyBytes), to = device.memory().allocate(kCopies * kCopyBytes);
  Background compute(device);
  const auto upload = device.make_stream("profile copy");
  std::vector<double> rates, shares;
  const auto begin = now_ns();
  while (rates.size() < kRuns || seconds_since(begin) < seconds) {
    const double alone = compute.rate_alone(0.02);
    std::int64_t copy_begin = 0;
    double busy_s = 0;
    const auto run_begin = now_ns();
    for (std::size_t i = 0; i < kCopies; ++i) {
      upload->submit([&] { copy_begin = now_ns(); });
      upload->copy(to.data() + i * kCopyBytes, from.data() + i * kCopyBytes, kCopyBytes);
      upload->submit([&] {
        const double copy_s = seconds_since(copy_begin);
        busy_s += copy_s;
        std::this_thread::sleep_for(std::chrono::duration<double>(2 * copy_s));
      });
    }
    const Event copied = upload->record();
    const double beside = compute.rate_while([&] { return !copied.done(); });
    const double lost_s = (1 - beside / alone) * seconds_since(run_begin);
    copied.wait();
    shares.push_back(std::clamp(1 - lost_s / busy_s, kLeastShare, 1.0));
    rates.push_back(static_cast<double>(kCopies * kCopyBytes) / busy_s);
  }
  profile.memory_copy = median(rates);
  profile.compute_beside_copy = median(shares);
}

// The traffic of an Adam update: four arrays read, three of them written.
double measure_update(ThreadPool& pool, MemoryResource& memory, double seconds) {
  constexpr std::size_t kArrayBytes = 64 * kMiB, kCount = kArrayBytes / sizeof(float), kTaskCount = 64 * 1024;
  const Slab slab = memory.allocate(4 * kArrayBytes);
  auto* const weight = reinterpret_cast<float*>(slab.data());
  const auto update = [&](std::int64_t task) {
    float* const p = weight + static_cast<std::size_t>(task) * kTaskCount;
    const float* const g = p + kCount;
    float* const m = p + 2 * kCount;
    float* const v = p + 3 * kCount;
#pragma GCC ivdep
    for (std::size_t i = 0; i < kTaskCount; ++i) {
      m[i] = 0.9F * m[i] + 0.1F * g[i];
      v[i] = 0.99F * v[i] + 0.01F * g[i] * g[i];
      p[i] -= 1e-3F * m[i] * (1.0F - v[i]);  // no square root: the measured quantity is traffic, not arithmetic
    }
  };
  std::vector<double> rates;
  const auto begin = now_ns();
  while (rates.size() < kRuns || seconds_since(begin) < seconds) {
    const auto run_begin = now_ns();
    pool.parallel_for(static_cast<std::int64_t>(kCount / kTaskCount), update);
    rates.push_back(7.0 * kArrayBytes / seconds_since(run_begin));
  }
  return median(rates);
}

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32] = "";
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

// For a device with its own memory: measures each direction alone, with copies like those of the executor's lanes.
double measure_link(Device& device, bool up, double seconds) {
  constexpr std::size_t kBytes = 256 * kMiB;
  const auto host_memory = device.host_memory();
  const Slab there = device.memory().allocate(kBytes), here = host_memory->allocate(kBytes);
  const auto stream = device.make_stream("profile copy");
  std::vector<double> rates;
  const auto begin = now_ns();
  while (rates.size() < kRuns || seconds_since(begin) < seconds) {
    const auto run_begin = now_ns();
    up ? stream->copy(there.data(), here.data(), kBytes) : stream->copy(here.data(), there.data(), kBytes);
    stream->synchronize();
    rates.push_back(static_cast<double>(kBytes) / seconds_since(run_begin));
  }
  return median(rates);
}

// Two arrays read, one written, by the device's own loop.
double measure_device_stream(Device& device, double seconds) {
  constexpr std::int64_t kRows = 16 * 1024, kColumns = 1024;
  constexpr std::size_t kBytes = kRows * kColumns * sizeof(float);
  const Slab slab = device.memory().allocate(3 * kBytes);
  math::fill_with_typical_numbers(device, {slab.data(), slab.bytes()});
  const auto array = [&](std::size_t i) { return TensorView{slab.data() + i * kBytes, DType::fp32, {kRows, kColumns}}; };
  const auto stream = device.make_stream("profile");
  std::vector<double> rates;
  const auto begin = now_ns();
  while (rates.size() < kRuns || seconds_since(begin) < seconds) {
    constexpr int kRepeat = 8;  // so that the latency of a launch does not matter
    const auto run_begin = now_ns();
    for (int i = 0; i < kRepeat; ++i) device.math().add(*stream, array(0), array(1), array(2));
    stream->synchronize();
    rates.push_back(kRepeat * 3.0 * static_cast<double>(kBytes) / seconds_since(run_begin));
  }
  return median(rates);
}

}  // namespace

void copy_disk(const MachineProfile& from, MachineProfile& to) {
  to.disk_read = from.disk_read;
  to.disk_write = from.disk_write;
  to.disk_both = from.disk_both;
  to.disk_latency_s = from.disk_latency_s;
  to.compute_beside_disk = from.compute_beside_disk;
  to.disk_assumed = from.disk_assumed;
}

MachineProfile measure_machine(Device& device, const std::vector<fs::path>& nvme_paths, double seconds) {
  MachineProfile profile;
  profile.device = device.name();
  auto& pool = device.pool();
  // The work that the host does for any device is measured on the host's own processor.
  const auto host = make_cpu_device(pool);
  measure_disk(profile, *host, nvme_paths, 0.4 * seconds);
  measure_copy(profile, *host, 0.1 * seconds);
  profile.memory_stream = measure_update(pool, host->memory(), 0.1 * seconds);
  const auto measure = [&](DType dtype, std::int64_t least, std::int64_t most, double share) {
    const auto edge = profile.separate_device() ? edge_for(device, dtype, least, most) : least;
    return measure_matmul(device, dtype, edge, share * seconds);
  };
  if (profile.separate_device()) {
    profile.upload = measure_link(device, true, 0.05 * seconds);
    profile.download = measure_link(device, false, 0.05 * seconds);
    profile.device_stream = measure_device_stream(device, 0.05 * seconds);
  }
  profile.matmul_fp32 = measure(DType::fp32, 1024, 8192, 0.15);
  profile.matmul_bf16 = measure(DType::bf16, 1024, 8192, 0.15);
  profile.matmul_fp64 = measure(DType::fp64, 256, 2048, 0.1);
  if (device.math().has_float8()) profile.matmul_float8 = measure(DType::e4m3, 512, 8192, 0.05);
  profile.threads = pool.threads();
  profile.measured_at = utc_now();
  return profile;
}

}  // namespace terrace
