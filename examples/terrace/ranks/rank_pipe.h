// How `terrace launch` knows when its last rank has ended, even if mpirun hangs then, and the exit code of the rank that failed
// first. (mpirun returns that code only if this rank also ended first.) Each rank holds one end of a pipe until its process
// ends, and launch has the other end. mpirun closes the descriptors that its ranks would inherit, so a rank opens the pipe by a
// name below /proc, which is in its environment (kUnderLaunch).
//
// Owner:   launch. Threads: one. Errors: Error if no pipe can be made. If a rank cannot open the pipe, launch waits for mpirun
//          alone, as without a pipe.
#pragma once

#include <string>

#include <terrace/core/base/files.h>

namespace terrace::cli {

class RankPipe {
 public:
  RankPipe();
  [[nodiscard]] std::string name() const;  // by which ranks open it
  // Whether at least one rank has begun and none is left.
  [[nodiscard]] bool all_ended();
  // The first exit code that a rank has told; 0: none yet.
  [[nodiscard]] int told_code();

 private:
  bool read_bytes();  // whether the end of the file was reached

  files::FileHandle from_;
  bool begun_ = false;
  int code_ = 0;
};

// Called by a rank of launch, which holds the pipe from then on.
void hold_rank_pipe();
// Called by a rank before it ends with this code for a reason of its own, not because another rank failed.
void tell_rank_pipe(int code);

}  // namespace terrace::cli
