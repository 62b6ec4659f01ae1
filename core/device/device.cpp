#include <terrace/core/device/device.h>

#include <stdexcept>

#include <terrace/core/base/error.h>

namespace terrace {

std::unique_ptr<Stream> Device::adopt_stream(void*, std::string stream) {  // NOLINT(performance-unnecessary-value-param)
  throw Error("the device " + name() + " cannot adopt the stream \"" + stream + "\": it has no streams of another library",
              ErrorKind::refused);
}
Math& Device::math() { throw std::logic_error("the device " + name() + " moves bytes only: it has no math"); }
ThreadPool& Device::pool() {
  throw std::logic_error("the device " + name() + " moves bytes only: it has no pool for computing");
}

}  // namespace terrace
