// The kernel's file operations, for tests that derive from them what they record, hold up or let fail.
//
// Owner:   the test; shared with the store. Threads: any. Errors: the kernel's.
#pragma once

#include <memory>
#include <span>
#include <string>

#include <terrace/offload/io/file_ops.h>

namespace terrace::test {

class KernelFiles : public io::FileOps {
 public:
  int create(int directory, const std::string& name) override { return kernel_->create(directory, name); }
  std::int64_t read(int file, std::span<std::byte> to) override { return kernel_->read(file, to); }
  std::int64_t write(int file, std::span<const std::byte> bytes) override { return kernel_->write(file, bytes); }
  int sync(int file) override { return kernel_->sync(file); }
  int rename(int directory, const std::string& from, const std::string& to) override {
    return kernel_->rename(directory, from, to);
  }
  int remove(int directory, const std::string& name) override { return kernel_->remove(directory, name); }
  int allocate(int file, std::uint64_t bytes) override { return kernel_->allocate(file, bytes); }
  int switch_off_copy_on_write(int file) override { return kernel_->switch_off_copy_on_write(file); }

 protected:
  const std::shared_ptr<io::FileOps> kernel_ = io::make_file_ops();
};

}  // namespace terrace::test
