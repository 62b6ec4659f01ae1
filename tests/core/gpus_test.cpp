// Finding GPUs, or the reason why there are none, with the tests' own driver.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <terrace/core/base/error.h>
#include <terrace/core/device/cuda.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/core/machine/pci.h>

namespace terrace::test {
namespace {

using testing::HasSubstr;

// An environment variable that is set during the object's lifetime.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Environment() { ::unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
};

const std::string kDriver = std::string(TERRACE_FAKE_CUDA_FOLDER) + "/libcuda.so.1";

}  // namespace

TEST(FindGpus, SaysWhatEachIs) {
  const Environment two("TERRACE_FAKE_GPUS", "2");
  const auto found = find_gpus(kDriver);
  ASSERT_EQ(found.gpus.size(), 2U);
  EXPECT_EQ(found.why_none, "");
  const auto& gpu = found.gpus[1];
  EXPECT_EQ(gpu.index, 1);
  EXPECT_EQ(gpu.name, "Imaginary H1");
  EXPECT_EQ(gpu.pci_bus_id, "FFFF:0A:00.1");
  EXPECT_EQ(gpu.numa_node, -1);
  EXPECT_EQ(gpu.memory_bytes, 3 * kGiB);
  EXPECT_EQ(gpu.compute_major, 9);
  EXPECT_EQ(gpu.compute_minor, 1);
}

// CUDA reads these variables only at its first call; the test driver refuses to start without the first one.
TEST(FindGpus, PreparesCudaAndLeavesWhatTheUserSaid) {
  ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  ::unsetenv("CUDA_MODULE_LOADING");
  EXPECT_EQ(find_gpus(kDriver).gpus.size(), 1U);
  EXPECT_STREQ(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
  EXPECT_EQ(std::getenv("CUDA_MODULE_LOADING"), nullptr) << "one GPU waits for no other";
  prepare_cuda(true);
  EXPECT_STREQ(std::getenv("CUDA_MODULE_LOADING"), "EAGER");
  const Environment own("CUDA_DEVICE_MAX_CONNECTIONS", "1"), lazy("CUDA_MODULE_LOADING", "LAZY");
  prepare_cuda(true);
  EXPECT_STREQ(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "1");
  EXPECT_STREQ(std::getenv("CUDA_MODULE_LOADING"), "LAZY");
}

TEST(FreeGpuBytes, AreTheDrivers) {
  EXPECT_EQ(free_gpu_bytes(0, kDriver), 3 * kGiB);
  const Environment used("TERRACE_FAKE_GPU_FREE_MIB", "512");
  EXPECT_EQ(free_gpu_bytes(0, kDriver), 512 * kMiB);
  const Environment broken("TERRACE_FAKE_DRIVER_ERROR", "803");
  EXPECT_EQ(free_gpu_bytes(0, kDriver), std::nullopt);
  EXPECT_EQ(free_gpu_bytes(0, "libno_such_driver.so.1"), std::nullopt);
}

TEST(FindGpus, SaysWhyThereIsNone) {
  const auto none = [](const std::string& driver) {
    const auto found = find_gpus(driver);
    EXPECT_TRUE(found.gpus.empty());
    EXPECT_NE(found.mend, "");
    return found.why_none;
  };
  EXPECT_THAT(none("libno_such_driver.so.1"), HasSubstr("no NVIDIA driver (libno_such_driver.so.1"));
  {
    const Environment zero("TERRACE_FAKE_GPUS", "0");
    EXPECT_EQ(none(kDriver), "the driver is installed, but reports no GPU");
  }
  {
    const Environment no_device("TERRACE_FAKE_DRIVER_ERROR", "100");
    EXPECT_EQ(none(kDriver), "the driver is installed, but reports no GPU");
  }
  {
    const Environment broken("TERRACE_FAKE_DRIVER_ERROR", "803");
    EXPECT_EQ(none(kDriver), "the driver does not work: CUDA_ERROR_IMAGINARY (803): not real");
  }
  {
    const auto modules = std::filesystem::path(testing::TempDir()) / ("terrace-modules-" + std::to_string(getpid()));
    std::filesystem::create_directories(modules);
    const Environment there("TERRACE_MODULE_PATH", modules.c_str()), old("TERRACE_FAKE_DRIVER_VERSION", "2030");
    EXPECT_EQ(find_gpus(kDriver).why_none, "") << "nothing that the driver would have to run";
    std::ofstream(modules / "terrace_cuda13.so").flush();
    EXPECT_THAT(none(kDriver), HasSubstr("the driver version is insufficient (error 35): it supports CUDA 2.3"));
    std::filesystem::remove_all(modules);
  }
}

TEST(FindGpus, WithoutOneACudaDeviceIsMissingHardware) {
  const auto found = find_gpus();
  if (!found.gpus.empty()) GTEST_SKIP() << "a GPU is here: " << found.gpus[0].name;
  ThreadPool pool(1);
  try {
    (void)make_cuda_device(pool);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::missing);
    EXPECT_THAT(error.what(), HasSubstr("no CUDA device: " + found.why_none));
    EXPECT_THAT(error.what(), HasSubstr("give `device` cpu"));
  }
}

TEST(NumaNodeOfPci, IsTheKernels) {
  namespace fs = std::filesystem;
  const auto root = fs::path(testing::TempDir()) / ("terrace-pci-" + std::to_string(getpid()));
  for (const auto* const node : {"node0", "node1"}) fs::create_directories(root / "sys/devices/system/node" / node);
  const auto put = [&](const std::string& device, const std::string& text) {
    fs::create_directories(root / "sys/bus/pci/devices" / device);
    std::ofstream(root / "sys/bus/pci/devices" / device / "numa_node") << text;
  };
  put("0000:1a:00.0", "1\n");
  put("0000:2b:00.0", "-1\n");
  put("0000:3c:00.0", "7\n");
  put("0000:4d:00.0", "");
  EXPECT_EQ(machine::numa_node_of_pci("0000:1A:00.0", root), 1);
  EXPECT_EQ(machine::numa_node_of_pci("00000000:1A:00.0", root), 1);
  EXPECT_EQ(machine::numa_node_of_pci("0000:2b:00.0", root), -1);
  EXPECT_EQ(machine::numa_node_of_pci("0000:3c:00.0", root), -1) << "a node that this machine does not have";
  EXPECT_EQ(machine::numa_node_of_pci("0000:4d:00.0", root), -1);
  EXPECT_EQ(machine::numa_node_of_pci("0000:5e:00.0", root), -1);
  fs::remove_all(root);
}

}  // namespace terrace::test
