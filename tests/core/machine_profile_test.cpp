#include <terrace/core/machine/machine.h>

#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include <terrace/core/base/error.h>
#include <terrace/core/device/device.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/core/profile/profile_algorithms.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

class MachineProfiles : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(directory_); }
  void TearDown() override { fs::remove_all(directory_); }
  // Changes a saved default profile; loading it must be refused with this reason.
  void expect_refusal(const std::function<void(nlohmann::json&)>& change, const std::string& reason) const {
    save_profile({}, file_);
    auto json = nlohmann::json::parse(std::ifstream(file_));
    change(json);
    std::ofstream(file_) << json;
    expect_refusal(reason);
  }
  void expect_refusal(const std::string& reason) const {
    EXPECT_THAT(test::refusal_of([&] { load_profile(file_); }),
                testing::AllOf(testing::HasSubstr(reason), testing::HasSubstr(file_.string())));
  }
  fs::path directory_ = fs::path(testing::TempDir()) / ("terrace-profile-" + std::to_string(getpid()));
  fs::path file_ = directory_ / "deeper" / "machine.json";
};

}  // namespace

TEST_F(MachineProfiles, SayWhetherADiskWasMeasured) {
  MachineProfile profile;
  save_profile(profile, file_);
  EXPECT_TRUE(load_profile(file_).disk_assumed);
  profile.disk_assumed = false;
  save_profile(profile, file_);
  EXPECT_FALSE(load_profile(file_).disk_assumed);
  expect_refusal([](auto& json) { json["disk_assumed"] = "no"; }, "\"disk_assumed\" is not true or false");
  ThreadPool pool(1);
  EXPECT_TRUE(measure_machine(*make_cpu_device(pool), {}, 0.0).disk_assumed);
  EXPECT_FALSE(measure_machine(*make_cpu_device(pool), {directory_}, 0.0).disk_assumed);
}

TEST_F(MachineProfiles, SurviveTheRoundTrip) {
  MachineProfile profile;
  profile.disk_read = 1.0 / 3;
  profile.matmul_fp64 = 12345678901.25;
  profile.threads = 7;
  profile.device = "cuda:0 of a kind";
  profile.download = 55e9;
  profile.measured_at = "2024-01-02T03:04:05Z";
  save_profile(profile, file_);
  const auto back = load_profile(file_);
  EXPECT_EQ(back.disk_read, profile.disk_read);
  EXPECT_EQ(back.disk_write, profile.disk_write);
  EXPECT_EQ(back.memory_copy, profile.memory_copy);
  EXPECT_EQ(back.memory_stream, profile.memory_stream);
  EXPECT_EQ(back.matmul_fp32, profile.matmul_fp32);
  EXPECT_EQ(back.matmul_bf16, profile.matmul_bf16);
  EXPECT_EQ(back.matmul_fp64, profile.matmul_fp64);
  EXPECT_EQ(back.disk_latency_s, profile.disk_latency_s);
  EXPECT_EQ(back.threads, 7);
  EXPECT_EQ(back.device, "cuda:0 of a kind");
  EXPECT_TRUE(back.separate_device());
  EXPECT_EQ(back.download, 55e9);
  EXPECT_EQ(back.measured_at, profile.measured_at);
  EXPECT_EQ(back.matmul_float8, 0) << "not measured";
  EXPECT_GT(back.float8_rate(), back.matmul_bf16) << "a GPU is assumed to be faster";
  profile.matmul_float8 = 9.5e14;
  save_profile(profile, file_);
  EXPECT_EQ(load_profile(file_).float8_rate(), 9.5e14);
}

TEST_F(MachineProfiles, KeepAlgorithmsOfOneLibrary) {
  EXPECT_EQ("", profile::algorithms_in_profile(file_));
  profile::add_algorithms_to_profile(file_, "library L1\nmatmul a: 1\n");
  EXPECT_FALSE(fs::exists(file_)) << "without rates it is no profile";
  MachineProfile profile;
  save_profile(profile, file_);
  EXPECT_EQ("", profile::algorithms_in_profile(file_));
  profile::add_algorithms_to_profile(file_, "library L1\nmatmul a: 1\n");
  profile::add_algorithms_to_profile(file_, "library L1\nmatmul b: 2\nmatmul a: 3\n");
  const std::string both = "library L1\nmatmul a: 1\nmatmul b: 2\n";
  EXPECT_EQ(both, profile::algorithms_in_profile(file_)) << "what is kept stays";
  profile.threads = 7;
  save_profile(profile, file_);
  EXPECT_EQ(both, profile::algorithms_in_profile(file_)) << "rates are measured anew, algorithms are not chosen anew";
  EXPECT_EQ(7, load_profile(file_).threads);
  profile::add_algorithms_to_profile(file_, "library L2\nmatmul a: 4\n");
  EXPECT_EQ("library L2\nmatmul a: 4\n", profile::algorithms_in_profile(file_));
  EXPECT_EQ(7, load_profile(file_).threads);
  profile.device = "another";
  save_profile(profile, file_);
  EXPECT_EQ("", profile::algorithms_in_profile(file_)) << "another device's";
}

TEST_F(MachineProfiles, RefuseWhatIsMalformed) {
  expect_refusal([](auto& json) { json["algorithms"] = "one"; }, "\"algorithms\" is not a list of strings");
  expect_refusal([](auto& json) { json["algorithms"] = {"one", 2}; }, "\"algorithms\" is not a list of strings");
  expect_refusal([](auto& json) { json.erase("disk_read_bytes_s"); }, "\"disk_read_bytes_s\" is missing");
  expect_refusal([](auto& json) { json["colour"] = 1; }, "\"colour\" is unknown");
  expect_refusal([](auto& json) { json["threads"] = "two"; }, "\"threads\" is not a positive number");
  expect_refusal([](auto& json) { json["threads"] = 1.5; }, "\"threads\" is not a whole number");
  expect_refusal([](auto& json) { json["memory_copy_bytes_s"] = 0; }, "\"memory_copy_bytes_s\" is not a positive number");
  expect_refusal([](auto& json) { json["measured_at"] = 3; }, "\"measured_at\" is not a string");
  expect_refusal([](auto& json) { json = nlohmann::json::array(); }, "not a JSON object");
  std::ofstream(file_) << "{\"threads\": ";
  expect_refusal("it is not JSON");
  fs::remove(file_);
  expect_refusal("errno 2");
}

TEST_F(MachineProfiles, MeasurementIsComplete) {
  ThreadPool pool(2);
  const auto profile = measure_machine(*make_cpu_device(pool), {directory_}, 0.5);
  for (const double value : {profile.disk_read, profile.disk_write, profile.memory_copy, profile.memory_stream,
                             profile.matmul_fp32, profile.matmul_bf16, profile.matmul_fp64, profile.disk_latency_s}) {
    EXPECT_GT(value, 0);
    EXPECT_LT(value, 1e16);
  }
  EXPECT_EQ(profile.threads, 2);
  EXPECT_EQ(profile.device, "cpu");
  EXPECT_FALSE(profile.measured_at.empty());
  EXPECT_TRUE(fs::is_empty(directory_)) << "a temporary file was left behind";
  save_profile(profile, file_);
  EXPECT_EQ(load_profile(file_).disk_read, profile.disk_read);
}

// A slow disk only writes a few blocks in the given time: nothing beyond them may be read.
TEST_F(MachineProfiles, MeasurementInNoTimeReadsOnlyWhatItWrote) {
  ThreadPool pool(1);
  const auto profile = measure_machine(*make_cpu_device(pool), {directory_, directory_}, 0.0);
  EXPECT_GT(profile.disk_read, 0);
  EXPECT_GT(profile.disk_latency_s, 0);
}

TEST_F(MachineProfiles, NameThePathThatIsNotThere) {
  ThreadPool pool(1);
  EXPECT_THAT(test::thrown_by([&] { measure_machine(*make_cpu_device(pool), {directory_ / "nowhere"}, 0.1); }).what(),
              testing::HasSubstr("nowhere"));
}

}  // namespace terrace
