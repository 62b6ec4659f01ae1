// A stream that runs its work immediately, for host code inside an operation of a fake GPU.
//
// Owner: the operation; `device` is the device of the math, may be null, and must outlive it. Threads: one. Errors: those of
//        the work.
#pragma once

#include <functional>
#include <stdexcept>

#include <terrace/core/device/device.h>

namespace terrace::test {

class InlineStream final : public Stream {
 public:
  explicit InlineStream(Device* device = nullptr) : device_(device) {}
  void submit(std::function<void()> work) override { work(); }
  void then(Told) override { fail(); }
  void wait(const Event&) override { fail(); }
  Event record() override { fail(); }
  void copy(std::byte*, const std::byte*, std::size_t) override { fail(); }
  Device& device() override {
    if (!device_) fail();
    return *device_;
  }

 private:
  [[noreturn]] static void fail() { throw std::logic_error("InlineStream: only submits"); }

  Device* const device_;
};

}  // namespace terrace::test
