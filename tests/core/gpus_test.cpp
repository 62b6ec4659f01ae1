// Finding GPUs, or the reason why there are none, with the tests' own driver.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include <terrace/core/base/error.h>
#include <terrace/core/device/cuda.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/core/machine/machine.h>
#include <terrace/core/machine/pci.h>
#include <terrace/core/profile/gpu_rates.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;
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
  EXPECT_EQ(gpu.uuid, "01000000000000000000000000000000");
  EXPECT_EQ(gpu.numa_node, -1);
  EXPECT_EQ(gpu.memory_bytes, 3 * kGiB);
  EXPECT_EQ(gpu.compute_major, 9);
  EXPECT_EQ(gpu.compute_minor, 1);
  EXPECT_EQ(gpu.multiprocessors, 1);
  EXPECT_EQ(gpu.clock_hz, 1e8);
  EXPECT_EQ(gpu.memory_bytes_s, 2 * 2.4e9 * 512);
  EXPECT_EQ(gpu.link_bytes_s, 0);
}

// CUDA reads these variables only at its first call; the test driver refuses to start without the first one.
TEST(FindGpus, PreparesCudaAndLeavesWhatTheUserSaid) {
  ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  ::unsetenv("CUDA_MODULE_LOADING");
  ::unsetenv("NCCL_RUNTIME_CONNECT");
  EXPECT_EQ(find_gpus(kDriver).gpus.size(), 1U);
  EXPECT_STREQ(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
  EXPECT_EQ(std::getenv("CUDA_MODULE_LOADING"), nullptr) << "one GPU waits for no other";
  prepare_cuda(true);
  EXPECT_STREQ(std::getenv("CUDA_MODULE_LOADING"), "EAGER");
  EXPECT_STREQ(std::getenv("NCCL_RUNTIME_CONNECT"), "0");
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
  EXPECT_THAT(error_of(ErrorKind::missing, [&] { (void)make_cuda_device(pool); }),
              testing::AllOf(HasSubstr("no CUDA device: " + found.why_none), HasSubstr("give `device` cpu")));
}

TEST(NumaNodeOfPci, IsTheKernels) {
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

// A card is as fast as the slot above it lets it be.
TEST(Gpus, HaveTheLinkOfCardAndSlot) {
  const fs::path root = fs::temp_directory_path() / ("terrace_links_" + std::to_string(::getpid()));
  const auto put = [&](const fs::path& folder, const char* speed, const char* width) {
    fs::create_directories(root / folder);
    if (speed) std::ofstream(root / folder / "max_link_speed") << speed << " GT/s PCIe\n";
    if (width) std::ofstream(root / folder / "max_link_width") << width << "\n";
  };
  fs::create_directories(root / "sys/bus/pci/devices");
  const auto at = [&](const std::string& bus_id, const fs::path& folder) {
    fs::create_directory_symlink(root / folder, root / "sys/bus/pci/devices" / bus_id);
    return machine::link_of_pci(bus_id, root);
  };
  put("sys/devices/port", "32.0", "4");
  put("sys/devices/port/card", "16.0", "16");
  const auto link = at("0000:1a:00.0", "sys/devices/port/card");
  EXPECT_EQ(link.transfers_s, 16e9);
  EXPECT_EQ(link.lanes, 4);
  EXPECT_NEAR(link.bytes_s(), 7.877e9, 1e6);

  put("sys/devices/old", "5.0", "8");
  EXPECT_NEAR(at("0000:2b:00.0", "sys/devices/old").bytes_s(), 4e9, 1);  // no port: the card alone
  put("sys/devices/says_nothing", nullptr, nullptr);
  EXPECT_EQ(at("0000:3c:00.0", "sys/devices/says_nothing").bytes_s(), 0);
  put("sys/devices/unknown", "Unknown", "255");
  EXPECT_EQ(at("0000:4d:00.0", "sys/devices/unknown").bytes_s(), 0);
  EXPECT_EQ(machine::link_of_pci("0000:5e:00.0", root).lanes, 0);
  fs::remove_all(root);
}

// The peaks on NVIDIA's data sheets, in TFLOP/s and GB/s, and the share of them that a plan counts on.
TEST(Gpus, HaveTheRatesOfTheirDataSheetsUntilTheyAreMeasured) {
  struct Sheet {
    const char* name;
    GpuInfo gpu;
    double bf16, fp32, memory;
  };
  const Sheet sheets[] = {
      {"A100 SXM",
       {.compute_major = 8, .compute_minor = 0, .multiprocessors = 108, .clock_hz = 1.41e9, .memory_bytes_s = 1.555e12},
       312,
       19.5,
       1555},
      {"RTX 4090",
       {.compute_major = 8, .compute_minor = 9, .multiprocessors = 128, .clock_hz = 2.52e9, .memory_bytes_s = 1.008e12},
       165.2,
       82.6,
       1008},
      {"H100 SXM",
       {.compute_major = 9, .compute_minor = 0, .multiprocessors = 132, .clock_hz = 1.83e9, .memory_bytes_s = 3.35e12},
       989.4,
       61.8,
       3350},
      {"RTX 5090",
       {.compute_major = 12, .compute_minor = 0, .multiprocessors = 170, .clock_hz = 2.407e9, .memory_bytes_s = 1.792e12},
       209.5,
       104.8,
       1792}};
  for (const auto& sheet : sheets) {
    SCOPED_TRACE(sheet.name);
    MachineProfile profile;
    profile::assume_rates_of(sheet.gpu, profile);
    EXPECT_NEAR(profile.matmul_bf16 / (0.7e12 * sheet.bf16), 1, 0.01);
    EXPECT_NEAR(profile.matmul_fp32 / (0.7e12 * sheet.fp32), 1, 0.01);
    EXPECT_NEAR(profile.device_stream / (0.85e9 * sheet.memory), 1, 0.01);
    EXPECT_NEAR(profile.upload, 26.5e9, 1e8);  // PCIe 4, because the link is not known
  }
}

// No GPU is planned with the CPU's rates, whatever its driver tells: neither a future one, nor one older than the table.
TEST(Gpus, NeverHaveTheRatesOfTheCpu) {
  for (const auto& [major, minor] : {std::pair{7, 5}, {8, 7}, {11, 0}, {99, 9}}) {
    MachineProfile profile;
    profile::assume_rates_of({.compute_major = major, .compute_minor = minor}, profile);
    EXPECT_GT(profile.matmul_bf16, 1e13) << major;
    EXPECT_GT(profile.matmul_fp32, 1e12) << major;
    EXPECT_GT(profile.device_stream, 1e11) << major;
  }
  MachineProfile faster;
  profile::assume_rates_of({.compute_major = 9, .link_bytes_s = 63e9}, faster);
  EXPECT_NEAR(faster.download, 53e9, 1e9) << "PCIe 5, as measured";
}

}  // namespace terrace::test
