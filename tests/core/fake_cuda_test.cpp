// The fake CUDA runtime finds what it is there to find.
#include <terrace/tests/support/fake_cuda.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace terrace::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class FakeCudaFinds : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(fake_.set_device(0), 0);
    ASSERT_EQ(fake_.create_stream(&stream_), 0);
    ASSERT_EQ(fake_.allocate(&there_, 4096), 0);
    ASSERT_EQ(fake_.register_host(host_.data(), 4096), 0);
  }
  void TearDown() override {
    fake_.release();
    fake_.synchronize_stream(stream_);
    fake_.destroy_stream(stream_);
    fake_.unregister_host(host_.data());
  }

  FakeCuda fake_;
  CudaStreamHandle stream_ = nullptr;
  void* there_ = nullptr;
  std::vector<std::byte> host_ = std::vector<std::byte>(8192, std::byte{1});
};

}  // namespace

TEST_F(FakeCudaFinds, DeviceMemoryIsPoisonedAndApart) {
  EXPECT_EQ(*static_cast<std::byte*>(there_), std::byte{0xcb});
  EXPECT_EQ(fake_.copy_async(host_.data(), there_, 4096, stream_), 0);
  EXPECT_EQ(fake_.synchronize_stream(stream_), 0);
  EXPECT_EQ(host_[4095], std::byte{0xcb});
  EXPECT_EQ(host_[4096], std::byte{1});
  EXPECT_EQ(fake_.free(there_), 0);
  EXPECT_TRUE(fake_.complaints().empty());
}

TEST_F(FakeCudaFinds, NothingEndsBeforeItIsLetTo) {
  CudaEventHandle event = nullptr;
  ASSERT_EQ(fake_.create_event(&event), 0);
  EXPECT_EQ(fake_.synchronize_event(event), 0) << "as CUDA: an event that was never recorded is over";
  fake_.hold();
  EXPECT_EQ(fake_.copy_async(host_.data(), there_, 4096, stream_), 0);
  EXPECT_EQ(fake_.record_event(event, stream_), 0);
  EXPECT_EQ(host_[0], std::byte{1});
  fake_.release();
  EXPECT_EQ(fake_.synchronize_event(event), 0);
  EXPECT_EQ(host_[0], std::byte{0xcb});
  EXPECT_EQ(fake_.destroy_event(event), 0);
  EXPECT_EQ(fake_.free(there_), 0);
  EXPECT_TRUE(fake_.complaints().empty());
}

TEST_F(FakeCudaFinds, CopiesFromMemoryThatIsNotRegistered) {
  EXPECT_EQ(fake_.copy_async(there_, host_.data() + 4096, 100, stream_), 0);
  EXPECT_THAT(fake_.complaints(), ElementsAre(HasSubstr("not registered")));
  EXPECT_EQ(fake_.free(there_), 0);
}

TEST_F(FakeCudaFinds, CopiesThatLeaveTheirPlace) {
  EXPECT_NE(fake_.copy_async(there_, host_.data(), 4097, stream_), 0);
  EXPECT_NE(fake_.copy_async(there_, host_.data() + 4000, 200, stream_), 0);
  EXPECT_THAT(fake_.complaints(), ElementsAre(HasSubstr("leaves"), HasSubstr("leaves")));
  ASSERT_EQ(fake_.register_host(host_.data() + 4096, 4096), 0);
  EXPECT_NE(fake_.copy_async(there_, host_.data() + 4000, 200, stream_), 0) << "over two registrations";
  EXPECT_EQ(fake_.unregister_host(host_.data() + 4096), 0);
  EXPECT_EQ(fake_.free(there_), 0);
}

TEST_F(FakeCudaFinds, MemoryGivenBackUnderACopy) {
  fake_.hold();
  EXPECT_EQ(fake_.copy_async(there_, host_.data(), 4096, stream_), 0);
  EXPECT_EQ(fake_.unregister_host(host_.data()), 0);
  fake_.release();
  EXPECT_EQ(fake_.synchronize_stream(stream_), 0);
  EXPECT_THAT(fake_.complaints(), ElementsAre(HasSubstr("under way")));
  EXPECT_EQ(fake_.register_host(host_.data(), 4096), 0);
  EXPECT_EQ(fake_.free(there_), 0);
}

TEST_F(FakeCudaFinds, UseOfWhatIsNotThere) {
  CudaEventHandle event = nullptr;
  CudaStreamHandle stream = nullptr;
  ASSERT_EQ(fake_.create_event(&event), 0);
  ASSERT_EQ(fake_.create_stream(&stream), 0);
  EXPECT_EQ(fake_.destroy_event(event), 0);
  EXPECT_EQ(fake_.destroy_stream(stream), 0);
  EXPECT_NE(fake_.record_event(event, stream_), 0);
  EXPECT_NE(fake_.copy_async(there_, host_.data(), 1, stream), 0);
  EXPECT_EQ(fake_.free(there_), 0);
  EXPECT_NE(fake_.free(there_), 0);
  EXPECT_NE(fake_.unregister_host(host_.data() + 8), 0);
  EXPECT_NE(fake_.register_host(host_.data() + 8, 8), 0);
  EXPECT_EQ(fake_.complaints().size(), 5U);
}

TEST_F(FakeCudaFinds, ThreadsWithoutADevice) {
  std::thread([&] { (void)fake_.copy_async(there_, host_.data(), 1, stream_); }).join();
  EXPECT_THAT(fake_.complaints(), ElementsAre(HasSubstr("never set its device")));
  EXPECT_EQ(fake_.free(there_), 0);
}

TEST(FakeCuda, ReportsLeaksAtItsEnd) {
  std::vector<std::string> told;
  {
    FakeCuda fake({.report = [&](const std::string& text) { told.push_back(text); }});
    void* data = nullptr;
    CudaEventHandle event = nullptr;
    ASSERT_EQ(fake.set_device(0), 0);
    ASSERT_EQ(fake.allocate(&data, 100), 0);
    ASSERT_EQ(fake.create_event(&event), 0);
  }
  EXPECT_THAT(told, ElementsAre("never given back: device memory of 100 bytes, 1 events"));
}

TEST(FakeCuda, FailsWhereItIsTold) {
  FakeCuda fake;
  fake.fail(FakeCuda::Call::set_device, {.at = 1, .code = 46});
  int count = 0;
  EXPECT_EQ(fake.set_device(0), 0);
  EXPECT_EQ(fake.set_device(0), 46);
  EXPECT_EQ(fake.set_device(0), 0);
  fake.fail({.at = 4, .code = 700, .sticky = true});
  EXPECT_EQ(fake.device_count(&count), 0);
  EXPECT_EQ(fake.device_count(&count), 700);
  EXPECT_EQ(fake.set_device(0), 700);
}

}  // namespace terrace::test
