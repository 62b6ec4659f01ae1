// The sizes of the pieces into which large operations are cut before CUDA gets them; powers of two. Tests use smaller ones.
//
// Owner: a value. Threads: any.
#pragma once

#include <cstddef>

#include <terrace/core/base/units.h>

namespace terrace::cuda {

struct CudaPieces {
  // A copy engine completes a copy before it starts the next one, so an urgent copy of another stream waits for at most one
  // piece.
  std::size_t copy_bytes = 32 * kMiB;
  // Host memory is registered between multiples of this address; no copy crosses one, because CUDA does not promise that one
  // copy may span two registrations. 100 GiB give enough pieces for 16 threads and more.
  std::size_t register_bytes = 4 * kGiB;
  std::size_t progress_bytes = 16 * kGiB;  // registered bytes between two lines of progress
};

}  // namespace terrace::cuda
