// Used if NCCL's header was not found at build time.
#include <terrace/core/base/error.h>
#include <terrace/parallel/comm/nccl/real_nccl.h>

namespace terrace::comm {

std::shared_ptr<NcclLibrary> real_nccl() {
  throw Error("several GPUs need NCCL, but this terrace was built without it\n  install NCCL and build terrace again",
              ErrorKind::missing);
}

}  // namespace terrace::comm
