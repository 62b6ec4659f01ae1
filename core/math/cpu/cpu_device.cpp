#include <terrace/core/device/host_device.h>
#include <terrace/core/math/math.h>

namespace terrace {
namespace {

class CpuDevice final : public device::HostDevice {
 public:
  CpuDevice(ThreadPool& pool, const Log& log) : HostDevice(pool, log), math_(make_cpu_math(pool)) {}
  Math& math() override { return *math_; }

 private:
  const std::unique_ptr<Math> math_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(ThreadPool& pool, const Log& log) { return std::make_unique<CpuDevice>(pool, log); }

}  // namespace terrace
