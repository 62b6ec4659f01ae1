// By default, the program leaves cores free for the threads that issue work to a GPU.
#include <terrace/examples/terrace/plan/device.h>

#include <gtest/gtest.h>

namespace terrace::cli {
namespace {

TEST(UsualThreads, LeaveTwoCoresToThoseThatIssueToAGpu) {
  RunConfig cpu, gpu;
  gpu.memory.device = "cuda:0";
  for (const auto& [cores, beside_gpu] : {std::pair{0, 1}, {1, 1}, {2, 2}, {4, 3}, {8, 6}, {16, 14}, {192, 190}}) {
    EXPECT_EQ(usual_threads(gpu, cores), beside_gpu) << cores;
    EXPECT_EQ(usual_threads(cpu, cores), std::max(cores, 1)) << cores;
  }
}

}  // namespace
}  // namespace terrace::cli
