// Replaces gzip_unpacker.cpp if zlib is not installed.
#include <terrace/core/base/error.h>
#include <terrace/examples/lm/unpack/unpacker.h>

namespace terrace::lm {

std::unique_ptr<Unpacker> gzip_unpacker() {
  throw Error("this build of terrace has no zlib\n  install zlib1g-dev and build terrace again");
}

}  // namespace terrace::lm
