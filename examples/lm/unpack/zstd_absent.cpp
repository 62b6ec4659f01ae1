// Replaces zstd_unpacker.cpp if libzstd is not installed.
#include <terrace/core/base/error.h>
#include <terrace/examples/lm/unpack/unpacker.h>

namespace terrace::lm {

std::unique_ptr<Unpacker> zstd_unpacker() {
  throw Error("this build of terrace has no libzstd\n  install libzstd-dev and build terrace again");
}

}  // namespace terrace::lm
