// A second CUDA stream (the branch) beside that of a CudaStream (the trunk), for work that its launch() functions issue to
// both. The GPU keeps the order between the two by events; no thread waits.
//
//   follow   later work of the branch starts after everything issued so far on the trunk
//   mark     stores in one of two places what has been issued so far on the branch
//   hold     later work of the trunk starts after the work that the place stores
//
// Owner:   the code that issues. At the end, the trunk must hold for all work of the branch (CudaBranch::Join): then the end of
//          the trunk is the end of both.
// Threads: the trunk's issuing thread; destroyed after the trunk has ended.
// Errors:  CudaError.
#pragma once

#include <array>
#include <memory>
#include <string>

#include <terrace/core/cuda/event_pool.h>
#include <terrace/core/cuda/runtime.h>

namespace terrace::cuda {

class CudaBranch {
 public:
  CudaBranch(std::shared_ptr<CudaRuntime> runtime, std::string on);
  ~CudaBranch();
  CudaBranch(const CudaBranch&) = delete;
  CudaBranch& operator=(const CudaBranch&) = delete;

  [[nodiscard]] CudaStreamHandle handle() const { return handle_; }
  void follow(CudaStreamHandle trunk);
  void mark(std::size_t place);
  void hold(CudaStreamHandle trunk, std::size_t place);  // does nothing if the place stores nothing

  // At the end of its scope, also if an exception ends it, the trunk holds for all work that was issued on the branch.
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
  CudaEventPool::Lease trunk_, end_;  // made at first use; recorded again each time: a wait keeps the record that it saw
  std::array<CudaEventPool::Lease, 2> places_;
};

}  // namespace terrace::cuda
