// What a test sees of the made-up cuDNN (fake_cudnn.cpp), through its one function of ours, terrace_fake_cudnn().
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace terrace::test {

struct FakeCudnn {
  std::int64_t fail_at = 0;  // this call from now on fails; 0: none
  std::int64_t calls = 0;    // since reset
  std::int64_t objects = 0;  // alive, handles among them
  std::int64_t executed = 0;
  bool nondeterministic = false;  // what the first engine says of itself
  bool has_engines = true;
  std::size_t scores = 2;  // bytes of workspace a score of the gradient; 2 is what one order of sums needs
  std::size_t version = 91900;
  std::vector<std::string> ran = {};  // "engine 6, knobs 24=26", one an execution
};

}  // namespace terrace::test
