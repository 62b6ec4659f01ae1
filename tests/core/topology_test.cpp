#include <terrace/core/machine/machine.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include <terrace/core/base/units.h>
#include <terrace/core/machine/cores.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

// A fake /proc and /sys.
class FakeMachine : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / ("terrace-topology-" + std::to_string(getpid()));
    fs::create_directories(root_);
    put("proc/meminfo", "MemTotal:       1000000 kB\nMemFree:  1 kB\nMemAvailable:    800000 kB\n");
    put("proc/cpuinfo", "processor : 0\nmodel name\t: Imaginary 9000\n");
  }
  void TearDown() override { fs::remove_all(root_); }
  void put(const fs::path& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  fs::path root_;
};

}  // namespace

TEST_F(FakeMachine, CoresOfANumaNodeAreThoseThatThisProcessMayUse) {
  const auto allowed = machine::allowed_cores();
  const auto list = [](int first, int last) { return std::to_string(first) + "-" + std::to_string(last) + "\n"; };
  put("sys/devices/system/node/node0/cpulist", "0-" + std::to_string(allowed.front()) + ",100000-100003\n");
  put("sys/devices/system/node/node1/cpulist", list(allowed.front() + 1, 99999));
  put("sys/devices/system/node/node2/cpulist", list(0, allowed.back()));
  put("sys/devices/system/node/node3/cpulist", "\n");
  const std::vector<int> first{allowed.front()}, rest(allowed.begin() + 1, allowed.end());
  const bool several = allowed.size() > 1;
  EXPECT_EQ(machine::cores_of_numa_node(0, root_), several ? first : std::vector<int>{});
  EXPECT_EQ(machine::cores_of_numa_node(1, root_), rest);
  for (const int says_nothing : {2, 3, 4, -1}) EXPECT_EQ(machine::cores_of_numa_node(says_nothing, root_), std::vector<int>{});
  EXPECT_EQ(usable_cores(first), 1);
  EXPECT_EQ(usable_cores({}), read_topology().cores);
}

TEST(Topology, OfThisMachineIsSane) {
  const auto here = read_topology();
  EXPECT_GE(here.cores, 1);
  EXPECT_LE(here.cores, sysconf(_SC_NPROCESSORS_CONF));
  EXPECT_GE(here.numa_nodes, 1);
  EXPECT_GT(here.memory_bytes, 64 * kMiB);
  EXPECT_GT(here.available_memory_bytes, 0U);
  EXPECT_LE(here.available_memory_bytes, here.memory_bytes);
  EXPECT_TRUE(here.simd == "avx512" || here.simd == "avx2" || here.simd == "baseline") << here.simd;
}

TEST_F(FakeMachine, WithoutGroupsHasItsWholeMemory) {
  const auto t = read_topology(root_);
  EXPECT_EQ(t.cpu_model, "Imaginary 9000");
  EXPECT_EQ(t.memory_bytes, 1'000'000 * kKiB);
  EXPECT_EQ(t.available_memory_bytes, 800'000 * kKiB);
  EXPECT_EQ(t.numa_nodes, 1);
}

TEST_F(FakeMachine, RespectsVersion2GroupsAndTheirParents) {
  put("proc/self/cgroup", "0::/outer/inner\n");
  put("sys/fs/cgroup/outer/cpu.max", "100000 100000\n");  // the parent's limit is tighter
  put("sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
  put("sys/fs/cgroup/outer/inner/memory.max", "104857600\n");
  put("sys/fs/cgroup/outer/inner/memory.current", "52428800\n");
  put("sys/fs/cgroup/outer/inner/memory.stat", "anon 1\ninactive_file 10485760\n");
  put("sys/fs/cgroup/outer/memory.max", "max\n");
  put("sys/devices/system/node/node0/cpulist", "0");
  put("sys/devices/system/node/node1/cpulist", "1");
  put("sys/devices/system/node/possible", "0-1");
  const auto t = read_topology(root_);
  EXPECT_EQ(t.cores, 1);
  EXPECT_EQ(t.available_memory_bytes, (100 - 50 + 10) * kMiB);
  EXPECT_EQ(t.numa_nodes, 2);
}

// Above memory.high the kernel slows a group down, so this limit counts, also the parent's.
TEST_F(FakeMachine, RespectsTheLimitAboveWhichAGroupIsSlowedDown) {
  put("proc/self/cgroup", "0::/outer/inner\n");
  put("sys/fs/cgroup/outer/memory.high", "62914560\n");
  put("sys/fs/cgroup/outer/memory.max", "max\n");
  put("sys/fs/cgroup/outer/memory.current", "20971520\n");
  put("sys/fs/cgroup/outer/inner/memory.high", "max\n");
  put("sys/fs/cgroup/outer/inner/memory.max", "104857600\n");
  put("sys/fs/cgroup/outer/inner/memory.current", "10485760\n");
  EXPECT_EQ(read_topology(root_).available_memory_bytes, (60 - 20) * kMiB);
  put("sys/fs/cgroup/outer/inner/memory.high", "31457280\n");
  EXPECT_EQ(read_topology(root_).available_memory_bytes, (30 - 10) * kMiB);
}

// After some runs, the pages of data files are active; they still count as free memory. Pages of tmpfs files do not.
TEST_F(FakeMachine, CountsPagesOfFilesAsFree) {
  put("proc/self/cgroup", "0::/box\n");
  put("sys/fs/cgroup/box/memory.max", "104857600\n");
  put("sys/fs/cgroup/box/memory.current", "94371840\n");
  put("sys/fs/cgroup/box/memory.stat",
      "anon 20971520\nfile 73400320\nshmem 10485760\ninactive_anon 31457280\ninactive_file 20971520\nactive_file 41943040\n");
  EXPECT_EQ(read_topology(root_).available_memory_bytes, (100 - 90 + 20 + 40) * kMiB);
  put("proc/self/cgroup", "5:memory:/box\n");
  put("sys/fs/cgroup/box/memory.max", "max\n");
  put("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "104857600\n");
  put("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "94371840\n");
  put("sys/fs/cgroup/memory/box/memory.stat", "inactive_file 1\ntotal_inactive_file 20971520\ntotal_active_file 41943040\n");
  EXPECT_EQ(read_topology(root_).available_memory_bytes, (100 - 90 + 20 + 40) * kMiB);
}

TEST_F(FakeMachine, RespectsVersion1Groups) {
  put("proc/self/cgroup", "5:memory:/box\n4:cpu,cpuacct:/box\n0::/\n");
  put("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "50000\n");
  put("sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "1048576\n");
  put("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "2097152\n");  // above the limit: no memory is left
  const auto t = read_topology(root_);
  EXPECT_EQ(t.cores, 1);  // half a core is one thread
  EXPECT_EQ(t.available_memory_bytes, 0U);
}

TEST_F(FakeMachine, NoQuotaIsNoLimit) {
  put("proc/self/cgroup", "4:cpu:/\n0::/gone\n");
  put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/cpu.max", "max 100000\n");
  const fs::path empty = root_ / "empty";
  EXPECT_EQ(read_topology(root_).cores, read_topology(empty).cores);
}

}  // namespace terrace
