// A second CUDA stream beside that of a CudaStream, the trunk, for work that its launch() functions issue to both. The GPU
// keeps the order between the two by events; no thread waits.
//
//   follow   the branch's later work starts after all that the trunk was given
//   mark     remembers all that the branch was given, in one of two places
//   hold     the trunk's later work starts after what the place remembers
//
// Owner:   the code that issues. At the end it must have the trunk hold for all of the branch (CudaBranch::Join): then the
//          trunk's end is that of both.
// Threads: the trunk's issuing thread; destroyed after the trunk has ended.
// Errors:  CudaError.
#pragma once

#include <array>
#include <memory>
#include <string>

#include <terrace/core/cuda/event_pool.h>
#include <terrace/core/cuda/runtime.h>

namespace terrace {

class CudaBranch {
 public:
  CudaBranch(std::shared_ptr<CudaRuntime> runtime, std::string on);
  ~CudaBranch();
  CudaBranch(const CudaBranch&) = delete;
  CudaBranch& operator=(const CudaBranch&) = delete;

  [[nodiscard]] CudaStreamHandle handle() const { return handle_; }
  void follow(CudaStreamHandle trunk);
  void mark(std::size_t place);
  void hold(CudaStreamHandle trunk, std::size_t place);  // nothing, if the place remembers nothing

  // At its end, also that by an exception, the trunk holds for all that the branch was given.
  class Join {
   public:
    Join(CudaBranch& branch, CudaStreamHandle trunk) : branch_(branch), trunk_(trunk) {}
    ~Join();
    Join(const Join&) = delete;
    Join& operator=(const Join&) = delete;

   private:
    CudaBranch& branch_;
    const CudaStreamHandle trunk_;
  };

 private:
  void demand(int code, const char* call) const;
  CudaEventHandle event(CudaEventPool::Lease& place);

  const std::shared_ptr<CudaRuntime> runtime_;
  const std::string on_;
  CudaStreamHandle handle_ = nullptr;
  CudaEventPool events_;
  CudaEventPool::Lease trunk_, end_;  // made at their first use; a wait keeps what it saw, so each is recorded again
  std::array<CudaEventPool::Lease, 2> places_;
};

}  // namespace terrace
