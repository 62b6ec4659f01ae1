// The program with a GPU: a driver and a CUDA module of ours stand where the real ones would, so that everything between a
// command line and a copy runs here.
#include <filesystem>
#include <fstream>
#include <map>

#include "cli_test.h"

namespace terrace::test {
namespace {

class WithGpu : public Cli {
 protected:
  // terrace WORDS… where the environment leads to the fakes, and says `more`.
  [[nodiscard]] Outcome with_gpu(Words words, const std::map<std::string, std::string>& more = {}) const {
    auto started = launch(std::move(words));
    started.environment["LD_LIBRARY_PATH"] = TERRACE_FAKE_CUDA_FOLDER;
    started.environment["TERRACE_MODULE_PATH"] = TERRACE_FAKE_CUDA_FOLDER;
    for (const auto& [name, value] : more) started.environment[name] = value;
    return run(started);
  }
};

TEST_F(WithGpu, DoctorSaysWhichThereAre) {
  const auto outcome = with_gpu({"doctor", "--device", "cuda:0"}, {{"TERRACE_FAKE_GPUS", "2"}});
  EXPECT_EQ(0, outcome.exit) << outcome.described;
  EXPECT_THAT(outcome.out, HasSubstr("2 GPUs; cuda:0 Imaginary H0, 3.00 GiB, compute capability 9.1; cuda:1 Imaginary H1"));
}

TEST_F(WithGpu, DoctorSaysWhyThereIsNone) {
  const auto broken = with_gpu({"doctor", "--device", "cuda:0"}, {{"TERRACE_FAKE_DRIVER_ERROR", "803"}});
  EXPECT_EQ(4, broken.exit) << broken.described;
  EXPECT_THAT(broken.out, HasSubstr("the driver does not work: CUDA_ERROR_IMAGINARY (803)"));
  EXPECT_THAT(broken.out, HasSubstr("kernel log"));
}

TEST_F(WithGpu, AGpuWithoutAModuleIsWarnedOf) {
  std::filesystem::create_directory(at("module"));
  std::ofstream(at("module/terrace_cuda.so")) << "no module";
  const auto outcome = with_gpu({"doctor"}, {{"TERRACE_MODULE_PATH", at("module").string()}});
  EXPECT_EQ(0, outcome.exit) << outcome.described;
  for (const auto* const part : {"which this build cannot use", "terrace_cuda.so", "TERRACE_MODULE_PATH", "nvcc"})
    EXPECT_THAT(outcome.out, HasSubstr(part));
}

}  // namespace
}  // namespace terrace::test
