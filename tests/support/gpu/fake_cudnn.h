// The test's access to the fake cuDNN (fake_cudnn.cpp), through its additional function terrace_fake_cudnn().
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace terrace::test {

struct FakeCudnn {
  std::int64_t fail_at = 0;  // the n-th call from now fails; 0: none
  std::int64_t calls = 0;    // since the last reset
  std::int64_t objects = 0;  // not destroyed yet, including handles
  std::int64_t executed = 0;
  bool nondeterministic = false;  // attribute of the first engine
  bool has_engines = true;
  std::size_t scores = 2;  // bytes of workspace per score of the gradient; sums in one order need 2
  std::size_t version = 91900;
  std::vector<std::string> ran = {};  // "engine 6, knobs 24=26" for each execution
};

}  // namespace terrace::test
