// Keeps oneDNN from starting its own thread pool in each of our threads.
//
// Threads: any; holds for the calling thread.
#pragma once

#include <omp.h>

namespace terrace::cpu {

inline void hold_one_thread() {
  thread_local const bool held = (omp_set_num_threads(1), true);
  static_cast<void>(held);
}

}  // namespace terrace::cpu
