// A store's file operations with one fault at a chosen call: a failure that a kernel, a file system or a drive may cause.
//
// Owner:   the test; shared with the store. Threads: any. Errors: the fault's.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <terrace/core/base/units.h>
#include <terrace/tests/support/kernel_files.h>

namespace terrace::test {

class FaultyFiles final : public KernelFiles {
 public:
  enum class Call : std::uint8_t { create, read, write, sync, rename, remove, allocate };
  enum class What : std::uint8_t { none, error, half, nothing, late, never, held, torn, flipped, lost, misdirected };
  struct Fault {
    Call call{};
    std::uint64_t at = 0;  // number of the call of this kind, from 0
    What what = What::none;
    int error_number = EIO;
    std::chrono::milliseconds delay{5000};
  };

  FaultyFiles() : fault_() {}
  explicit FaultyFiles(Fault fault) : fault_(fault) {}
  [[nodiscard]] std::uint64_t calls(Call call) const {
    const std::lock_guard lock(mutex_);
    return counts_[static_cast<std::size_t>(call)];
  }
  [[nodiscard]] bool struck() const {
    const std::lock_guard lock(mutex_);
    return struck_;
  }
  // Lets the call that would never end return.
  void let_stuck_calls_end() {
    {
      const std::lock_guard lock(mutex_);
      released_ = true;
    }
    release_.notify_all();
  }

  std::int64_t read(int file, std::span<std::byte> to) override {
    return strike(Call::read) == What::error ? -fault_.error_number : kernel_->read(file, to);
  }
  int create(int directory, const std::string& name) override {
    return simple(Call::create, [&] { return kernel_->create(directory, name); });
  }
  int sync(int file) override {
    return simple(Call::sync, [&] { return kernel_->sync(file); });
  }
  int remove(int directory, const std::string& name) override {
    return simple(Call::remove, [&] { return kernel_->remove(directory, name); });
  }
  int rename(int directory, const std::string& from, const std::string& to) override {
    return simple(
        Call::rename, [&] { return kernel_->rename(directory, from, to); },
        [&] { return kernel_->rename(directory, from, to + ".elsewhere"); });
  }

  std::int64_t write(int file, std::span<const std::byte> bytes) override {
    switch (strike(Call::write)) {
      case What::error: return -fault_.error_number;
      case What::half: return kernel_->write(file, bytes.first((bytes.size() + 1) / 2));
      case What::nothing: return 0;
      case What::torn: kernel_->write(file, bytes.first(bytes.size() / 2)); break;
      case What::flipped: {
        std::vector<std::byte> other(bytes.begin(), bytes.end());
        other[other.size() / 3] ^= std::byte{4};
        kernel_->write(file, other);
        break;
      }
      case What::lost: break;
      case What::held: {  // done after the next call
        const std::lock_guard lock(mutex_);
        held_ = {::dup(file), {bytes.begin(), bytes.end()}};
        break;
      }
      case What::misdirected: ::lseek(file, static_cast<off_t>(kPageBytes), SEEK_CUR); [[fallthrough]];
      default: return kernel_->write(file, bytes);
    }
    return static_cast<std::int64_t>(bytes.size());
  }

  int allocate(int file, std::uint64_t bytes) override {
    const auto half = round_up(bytes / 2, kPageBytes);
    switch (strike(Call::allocate)) {
      case What::error: return -fault_.error_number;
      case What::half: return kernel_->allocate(file, half);
      case What::nothing:
      case What::misdirected: return 0;  // the space goes to another file
      case What::held:                   // allocates the end first
        if (::fallocate(file, 0, static_cast<off_t>(half), static_cast<off_t>(bytes - half)) != 0) return -errno;
        return kernel_->allocate(file, bytes);
      case What::torn:  // the file has its size, but only a part of its space
        kernel_->allocate(file, half);
        return ::ftruncate(file, static_cast<off_t>(bytes)) == 0 ? 0 : -errno;
      case What::flipped:
      case What::lost: {  // the bytes are not zeros but another file's old content
        const int result = kernel_->allocate(file, bytes);
        fill_with_litter(file, bytes);
        return result;
      }
      default: return kernel_->allocate(file, bytes);
    }
  }

 private:
  template <class Real>
  int simple(Call call, Real real) {
    return simple(call, real, real);
  }
  template <class Real, class Elsewhere>
  int simple(Call call, Real real, Elsewhere elsewhere) {
    switch (strike(call)) {
      case What::error: return -fault_.error_number;
      case What::lost: return 0;  // acknowledged but not done
      case What::misdirected: return elsewhere();
      default: return real();
    }
  }

  // Decides what happens to this call; a delayed or endless call waits here.
  What strike(Call call) {
    std::unique_lock lock(mutex_);
    if (held_.first >= 0) {
      kernel_->write(held_.first, held_.second);
      ::close(std::exchange(held_.first, -1));
    }
    const auto number = counts_[static_cast<std::size_t>(call)]++;
    if (fault_.what == What::none || fault_.call != call || fault_.at != number) return What::none;
    struck_ = true;
    if (fault_.what == What::late) release_.wait_for(lock, fault_.delay, [this] { return released_; });
    if (fault_.what == What::never) release_.wait(lock, [this] { return released_; });
    return fault_.what;
  }

  static void fill_with_litter(int file, std::uint64_t bytes) {
    const auto free = [](std::byte* p) { std::free(p); };
    const std::unique_ptr<std::byte, decltype(free)> page(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, kPageBytes)),
                                                          free);
    std::fill_n(page.get(), kPageBytes, std::byte{0xa5});
    for (std::uint64_t at = 0; at < bytes; at += kPageBytes)
      if (::pwrite(file, page.get(), kPageBytes, static_cast<off_t>(at)) < 0) return;
  }

  const Fault fault_;
  mutable std::mutex mutex_;
  std::condition_variable release_;
  std::array<std::uint64_t, 7> counts_{};
  bool struck_ = false, released_ = false;
  std::pair<int, std::vector<std::byte>> held_{-1, {}};
};

}  // namespace terrace::test
