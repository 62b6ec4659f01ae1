#include <terrace/core/device/device.h>

#include <stdexcept>

namespace terrace {

Math& Device::math() { throw std::logic_error("the device " + name() + " moves bytes only: it has no math"); }
ThreadPool& Device::pool() {
  throw std::logic_error("the device " + name() + " moves bytes only: it has no pool for computing");
}

}  // namespace terrace
