// Keeps oneDNN from starting its own thread pool in each of terrace's threads.
//
// Threads: any; holds for the calling thread. Errors: those of demand_room_for_code().
#pragma once

#include <omp.h>

#include <terrace/core/math/cpu/room_for_code.h>

namespace terrace::cpu {

inline void hold_one_thread() {
  thread_local const bool held = (demand_room_for_code(), omp_set_num_threads(1), true);
  static_cast<void>(held);
}

}  // namespace terrace::cpu
