#include <terrace/core/device/host_device.h>
#include <terrace/core/math/math.h>

namespace terrace {
namespace {

class CpuDevice final : public HostDevice {
 public:
  explicit CpuDevice(ThreadPool& pool) : HostDevice(pool), math_(make_cpu_math(pool)) {}
  Math& math() override { return *math_; }

 private:
  const std::unique_ptr<Math> math_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(ThreadPool& pool) { return std::make_unique<CpuDevice>(pool); }

}  // namespace terrace
