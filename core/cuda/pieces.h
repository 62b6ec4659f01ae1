// How large things are cut before CUDA sees them; powers of two. Tests take smaller ones.
//
// Owner: a value. Threads: any.
#pragma once

#include <cstddef>

#include <terrace/core/units.h>

namespace terrace {

struct CudaPieces {
  // A copy engine runs one copy to its end: an urgent copy of another stream waits for one piece at most.
  std::size_t copy_bytes = 32 * kMiB;
  // Host memory is registered between multiples of this address; no copy crosses one, because one copy over two registrations
  // is nothing that CUDA promises. 100 GiB are pieces for 16 threads and more.
  std::size_t register_bytes = 4 * kGiB;
  std::size_t progress_bytes = 16 * kGiB;  // of registration, from one line to the next
};

}  // namespace terrace
