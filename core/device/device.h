// A device makes streams and memory; a stream is a FIFO of work that never blocks the caller. A device that also computes has
// math (core/math/math.h); moving chunks needs none, so a device of your own needs the five pure virtual functions only.
//
// Owner:   main owns devices; a stream belongs to its maker and must not outlive its device.
// Threads: one thread submits to a stream at a time. A CPU stream is a real thread, so a missing wait between two
//          streams is a race that ThreadSanitizer sees.
// Errors:  work that throws poisons its stream: later work is skipped (destroyed without being called), every event recorded
//          after it rethrows, and callbacks of then() get the failure.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include <terrace/core/device/event.h>
#include <terrace/core/device/memory_resource.h>

namespace terrace {

class Device;
class Math;
class ThreadPool;

class Stream {
 public:
  virtual ~Stream() = default;                          // finishes what was submitted
  virtual void submit(std::function<void()> work) = 0;  // host work; what is submitted later starts after it
  // Calls `told` once, in order, on a thread of the stream, when everything submitted so far has ended: with null, or with the
  // stream's error if it has failed. `told` must not throw. Work submitted later does not wait for it, so that observers do not
  // slow the device down.
  using Told = std::function<void(const std::exception_ptr& failure)>;
  virtual void then(Told told) = 0;
  virtual void wait(const Event& event) = 0;  // work submitted later starts after the event
  virtual Event record() = 0;                 // done when everything submitted so far is done
  virtual void copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  [[nodiscard]] virtual Device& device() = 0;
  void synchronize() { record().wait(); }
};

class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual std::string name() const = 0;  // "cpu", "cuda:0"
  virtual std::unique_ptr<Stream> make_stream(std::string name) = 0;
  // Wraps a stream that the caller has made with the device's own library, a cudaStream_t, and submits work to itself. The
  // result covers that work, too: record() and then() mean all of it. Its calls use the caller's thread and set that thread's
  // device; wait() and submit() block it. The caller destroys the result first, then its stream. ErrorKind::refused if the
  // device has no such streams.
  virtual std::unique_ptr<Stream> adopt_stream(void* native, std::string name);
  [[nodiscard]] virtual MemoryResource& memory() = 0;  // the device's own arena memory
  // Host memory that is transferred at the full speed of the device's link; the device's kernels can also access it directly.
  // Shared, because a disk may still be writing into this memory after a failed run has destroyed its device.
  [[nodiscard]] virtual std::shared_ptr<MemoryResource> host_memory() = 0;
  // True if its kernels run on the host's cores: then host work slows them down, and both share one lane.
  [[nodiscard]] virtual bool computes_on_host() const = 0;
  // Of a device that computes: its operations, and the one pool for host computing. Asking another one is a std::logic_error.
  [[nodiscard]] virtual Math& math();
  [[nodiscard]] virtual ThreadPool& pool();
};

// The CPU device, and the same without math. The pool is borrowed and must outlive the device.
std::unique_ptr<Device> make_cpu_device(ThreadPool& pool, const Log& log = {});
std::unique_ptr<Device> make_host_device(ThreadPool& pool, const Log& log = {});

}  // namespace terrace
