// A tensor's bytes: the test reads and writes them on the host, operations find them on the device, in device memory between
// guard zones, as in training. Without a mirror, both use the same memory.
//
// Owner:   the test; its device must outlive it, and have finished the operations on it.
// Threads: the test's.
// Errors:  the test fails if an operation has written to a guard zone.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <terrace/core/device/memory_resource.h>
#include <terrace/tests/support/program_device.h>

namespace terrace::test {

// The memory for the mirrors of a program's tensors: set before its tests. Null: the device accesses the test's own memory.
struct TestMirror {
  MemoryResource& memory;
  std::function<void(std::byte* to, const std::byte* from, std::size_t bytes)> copy;  // has finished when it returns
};
inline std::unique_ptr<TestMirror> test_mirror;
// How often the program's tests have waited for their devices: bytes read earlier may be outdated.
inline std::uint64_t test_waits = 0;

// Writes bytes to an address of operations.
inline void put_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes == 0) return;
  if (test_mirror) return test_mirror->copy(to, from, bytes);
  std::copy_n(from, bytes, to);
}
inline std::vector<std::byte> bytes_at(const std::byte* place, std::size_t bytes) {
  std::vector<std::byte> here(bytes);
  put_bytes(here.data(), place, bytes);
  return here;
}

class MirroredBytes {
 public:
  MirroredBytes() = default;
  explicit MirroredBytes(std::size_t bytes) : bytes_(bytes), whole_(bytes == 0 ? 0 : bytes + 2 * guard()) {
    if (bytes > 0) std::fill_n(whole_.data(), bytes + 2 * guard(), kGuard);
  }
  MirroredBytes(const MirroredBytes& other) : MirroredBytes(other.bytes_) {
    if (bytes_ > 0) std::copy_n(other.read(), bytes_, write());
  }
  MirroredBytes(MirroredBytes&&) noexcept = default;
  MirroredBytes& operator=(MirroredBytes other) noexcept {
    std::swap(bytes_, other.bytes_), std::swap(whole_, other.whole_), std::swap(slab_, other.slab_);
    std::swap(written_, other.written_), std::swap(used_, other.used_), std::swap(seen_, other.seen_);
    return *this;
  }
  ~MirroredBytes() {
    if (slab_ && slab_->data()) refresh();  // checks the guards
  }

  [[nodiscard]] std::byte* read() const {
    if (slab_ && !written_ && (used_ || seen_ != test_waits)) refresh();
    return here();
  }
  [[nodiscard]] std::byte* write() {
    (void)read();
    written_ = true;
    return here();
  }
  // For operations, which may read and write the bytes until the test reads them.
  [[nodiscard]] std::byte* on_device() const {
    if (!test_mirror || bytes_ == 0) return here();
    if (!slab_) slab_ = std::make_shared<Slab>(test_mirror->memory.allocate(bytes_ + 2 * guard())), written_ = true;
    if (written_) test_mirror->copy(slab_->data(), whole_.data(), bytes_ + 2 * guard());
    written_ = false;
    used_ = true;
    return slab_->data() + guard();
  }

 private:
  static constexpr std::byte kGuard{0xa5};
  static std::size_t guard() { return test_mirror ? 512 : 0; }
  [[nodiscard]] std::byte* here() const { return bytes_ == 0 ? nullptr : whole_.data() + guard(); }

  void refresh() const {
    try {
      test_mirror->copy(whole_.data(), slab_->data(), bytes_ + 2 * guard());
    } catch (const std::exception& error) {
      ADD_FAILURE() << "a tensor cannot be read back: " << error.what();
      return;
    }
    used_ = false;
    seen_ = test_waits;
    const auto is_guard = [](std::byte b) { return b == kGuard; };
    EXPECT_TRUE(std::all_of(whole_.data(), here(), is_guard))
        << "something was written before a tensor of " << bytes_ << " bytes";
    EXPECT_TRUE(std::all_of(here() + bytes_, here() + bytes_ + guard(), is_guard))
        << "something was written behind a tensor of " << bytes_ << " bytes";
  }

  std::size_t bytes_ = 0;
  mutable TestBytes whole_;             // includes the guard zones
  mutable std::shared_ptr<Slab> slab_;  // allocated when an operation first needs it
  mutable bool written_ = false;        // on the host, since the last transfer to the device
  mutable bool used_ = false;           // by operations, since the last read
  mutable std::uint64_t seen_ = 0;      // test_waits at the last read
};

}  // namespace terrace::test
