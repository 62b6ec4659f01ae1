// The device whose memory is the host's: streams are threads, and nothing is copied between memories of two kinds.
//
// Owner, threads, errors: as device.h. The pool is borrowed.
#pragma once

#include <memory>
#include <string>

#include <terrace/core/device/device.h>

namespace terrace::device {

class HostDevice : public Device {
 public:
  HostDevice(ThreadPool& pool, const Log& log);
  [[nodiscard]] std::string name() const override { return "cpu"; }
  std::unique_ptr<Stream> make_stream(std::string name) override;
  [[nodiscard]] MemoryResource& memory() override { return *memory_; }
  [[nodiscard]] std::shared_ptr<MemoryResource> host_memory() override { return memory_; }
  [[nodiscard]] bool computes_on_host() const override { return true; }
  [[nodiscard]] ThreadPool& pool() override { return pool_; }

 private:
  ThreadPool& pool_;
  const std::shared_ptr<MemoryResource> memory_;
};

}  // namespace terrace::device
