// How `terrace launch` knows when its last rank has ended, whatever mpirun does then, and with which code the one that failed
// first, whose code mpirun gives only if it also saw it end first: each rank holds one end of a pipe until its process ends,
// and launch has the other end. mpirun closes the descriptors that its ranks would inherit, so a rank opens the pipe by a name
// below /proc, which is in its environment (kUnderLaunch).
//
// Owner:   launch. Threads: one. Errors: Error if no pipe can be made. Where a rank cannot open it, launch waits for mpirun
//          alone, as without it.
#pragma once

#include <string>

#include <terrace/core/files.h>

namespace terrace::cli {

class RankPipe {
 public:
  RankPipe();
  [[nodiscard]] std::string name() const;  // for ranks
  // Whether at least one rank has begun and none is left.
  [[nodiscard]] bool all_ended();
  // The exit code that the first rank has told; 0: none has.
  [[nodiscard]] int told_code();

 private:
  bool read_bytes();  // whether the end of the file was reached

  FileHandle from_;
  bool begun_ = false;
  int code_ = 0;
};

// A rank of launch holds the pipe from here on.
void hold_rank_pipe();
// Before it ends with this code for a reason of its own, and not because another rank failed.
void tell_rank_pipe(int code);

}  // namespace terrace::cli
