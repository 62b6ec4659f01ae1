// Every finding comes with a way to mend it, and the exit code is 4 if something required is missing.
#include <terrace/examples/terrace/commands/doctor.h>

#include <cstdlib>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <terrace/core/device/cuda.h>

#include <terrace/tests/examples/scratch_folder.h>

namespace terrace::cli {
namespace {

std::pair<int, std::string> doctor(const RunConfig& config) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* const memory = open_memstream(&text, &size);
  const int code = run_doctor(config, false, memory);
  static_cast<void>(std::fclose(memory));
  std::string out(text, size);
  std::free(text);
  return {code, out};
}

TEST(Doctor, LooksAtEverything) {
  const auto [code, text] = doctor({});
  EXPECT_EQ(code, 0) << text;
  for (const auto* const name : {"terrace", "processor", "SIMD", "memory", "memlock", "huge pages", "io_uring", "CUDA", "MPI",
                                 "NCCL", "cuDNN", "disk path", "machine profile"}) {
    EXPECT_THAT(text, testing::HasSubstr(name));
  }
}

TEST(Doctor, JsonIsOneObject) {
  RunConfig config;
  config.run.json = true;
  const auto [code, text] = doctor(config);
  const auto object = nlohmann::json::parse(text);
  EXPECT_EQ(object.at("ok").get<bool>(), code == 0);
  EXPECT_GE(object.at("findings").size(), 11U);
}

TEST(Doctor, AMissingDiskPathFails) {
  RunConfig config;
  config.memory.nvme_path = {"/no/such/folder"};
  const auto [code, text] = doctor(config);
  EXPECT_EQ(code, 4);
  EXPECT_THAT(text, testing::HasSubstr("does not exist"));
  EXPECT_THAT(text, testing::HasSubstr("mend: mkdir -p /no/such/folder"));
}

TEST(Doctor, AFileIsNoDiskPath) {
  const ScratchFolder scratch;
  EXPECT_EQ(examine_path(scratch.write("f", "x")).at(0).status, Finding::Status::fail);
}

TEST(Doctor, LeavesNothingBehind) {
  const ScratchFolder scratch;
  const auto findings = examine_path(scratch.path());
  EXPECT_EQ(findings.size(), 3U);
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST(Doctor, TmpfsIsWarnedOf) {
  if (!std::filesystem::is_directory("/dev/shm")) GTEST_SKIP() << "no /dev/shm";
  const auto first = examine_path("/dev/shm").at(0);
  if (first.text.find("tmpfs") == std::string::npos) GTEST_SKIP() << "/dev/shm is " << first.text;
  EXPECT_EQ(first.status, Finding::Status::warn);
  EXPECT_FALSE(first.mend.empty());
}

TEST(Doctor, RequiredCudaThatIsAbsentFails) {
  const auto found = find_gpus();
  if (!found.gpus.empty()) GTEST_SKIP() << "a GPU is here: " << found.gpus[0].name;
  RunConfig config;
  config.memory.device = "cuda:0";
  const auto [code, text] = doctor(config);
  EXPECT_EQ(code, 4);
  EXPECT_THAT(text, testing::HasSubstr(found.why_none));
  EXPECT_THAT(text, testing::HasSubstr("or give --device cpu"));
}

TEST(Doctor, AMalformedProfileIsWarnedOf) {
  const ScratchFolder scratch;
  RunConfig config;
  config.plan.machine_profile = scratch.write("profile.json", "{").string();
  const auto [code, text] = doctor(config);
  EXPECT_EQ(code, 0);
  EXPECT_THAT(text, testing::HasSubstr("mend: terrace doctor --measure"));
}

}  // namespace
}  // namespace terrace::cli
