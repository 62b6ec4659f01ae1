// For a child before its program begins: every system call of one kind returns an error, or the first one kills the process.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <cstddef>

#include <terrace/tests/cli/program.h>

namespace terrace::test {

inline void answer_call(unsigned call, unsigned answer) {
  std::array<sock_filter, 4> program{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, answer),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
    ::_exit(kNotPermitted);
}

inline void forbid_call(unsigned call, int error_number) {
  answer_call(call, SECCOMP_RET_ERRNO | static_cast<unsigned>(error_number));
}
inline void die_at_call(unsigned call) { answer_call(call, SECCOMP_RET_KILL_PROCESS); }

}  // namespace terrace::test
