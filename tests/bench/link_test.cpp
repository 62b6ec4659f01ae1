// What crosses a link is measured right, and lost bytes and failed devices are found, on fake GPUs.
#include <terrace/bench/link/link.h>

#include <gmock/gmock.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <utility>

#include <terrace/bench/link/disk_flow.h>
#include <terrace/core/base/error.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/test_device.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::bench {
namespace {

using test::FakeCuda;
using testing::HasSubstr;

constexpr std::uint64_t kCopyBytes = 256 * kKiB;

// A device that loses one of its streams' copies of a size, and hands on everything else.
class LosingDevice final : public Device {
 public:
  LosingDevice(std::unique_ptr<Device> device, std::size_t bytes, int number)
      : device_(std::move(device)), bytes_(bytes), left_(number) {}
  std::string name() const override { return device_->name(); }
  MemoryResource& memory() override { return device_->memory(); }
  std::shared_ptr<MemoryResource> host_memory() override { return device_->host_memory(); }
  bool computes_on_host() const override { return false; }
  Math& math() override { return device_->math(); }
  ThreadPool& pool() override { return device_->pool(); }
  std::unique_ptr<Stream> make_stream(std::string name) override {
    return std::make_unique<Losing>(*this, device_->make_stream(std::move(name)));
  }

 private:
  class Losing final : public Stream {
   public:
    Losing(LosingDevice& device, std::unique_ptr<Stream> stream) : device_(device), stream_(std::move(stream)) {}
    void submit(std::function<void()> work) override { stream_->submit(std::move(work)); }
    void then(Told told) override { stream_->then(std::move(told)); }
    void wait(const Event& event) override { stream_->wait(event); }
    Event record() override { return stream_->record(); }
    void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
      if (bytes != device_.bytes_ || device_.left_-- != 0) stream_->copy(to, from, bytes);
    }
    Device& device() override { return device_; }

   private:
    LosingDevice& device_;
    const std::unique_ptr<Stream> stream_;
  };

  const std::unique_ptr<Device> device_;
  const std::size_t bytes_;
  int left_;  // copies of this size before the one that is lost
};

// Math that leaves out one call, counted from 0.
class ForgetfulMath final : public Math {
 public:
  ForgetfulMath(std::unique_ptr<Math> math, int number) : math_(std::move(math)), left_(number) {}
  void enqueue(Stream& stream, const math::MathCall& call) override {
    if (left_-- != 0) math_->enqueue(stream, call);
  }

 private:
  const std::unique_ptr<Math> math_;
  int left_;
};

class LinkTest : public testing::Test {
 protected:
  ~LinkTest() override {
    std::fclose(notes_);
    std::free(text_);
  }

  static std::shared_ptr<FakeCuda> make_fake(int devices = 1) {
    auto options = test::strict_fake();
    options.devices = devices;
    options.memory_bytes = kGiB;
    return std::make_shared<FakeCuda>(options);
  }
  std::unique_ptr<Device> make_device(const std::shared_ptr<FakeCuda>& fake, int index = 0, int forgotten_call = -1) {
    return cuda::make_device_on(fake, pool_, {.index = index},
                                [&](cuda::CudaRuntime&, Device& device) -> std::unique_ptr<Math> {
                                  return std::make_unique<ForgetfulMath>(
                                      std::make_unique<test::LaunchedMath>(make_cpu_math(device.pool()), fake), forgotten_call);
                                });
  }
  // The rows that `measure` reports.
  template <class Measure>
  std::vector<Result> rows(const Measure& measure) {
    std::free(std::exchange(text_, nullptr));
    std::size_t size = 0;
    std::FILE* const out = open_memstream(&text_, &size);
    Session session({.runs = 2, .json = true, .stopped = {}, .out = out, .notes = notes_});
    try {
      measure(session);
    } catch (...) {
      std::fclose(out);
      throw;
    }
    EXPECT_EQ(std::nullopt, session.finish());
    std::fclose(out);
    return Result::parse(std::string(text_, size)).at("results");
  }
  template <class Measure>
  std::string error_of(const Measure& measure) {
    return test::thrown_by([&] { (void)rows(measure); }).what();
  }

  ThreadPool pool_{1};
  ScratchFolder scratch_;
  std::FILE* const notes_ = std::fopen("/dev/null", "w");  // what is advised depends on this machine's cores
  char* text_ = nullptr;
};

TEST_F(LinkTest, KernelsReachHostMemoryBothWays) {
  const auto device = make_device(make_fake());
  std::map<std::string, std::string> names;
  for (const auto& row : rows([&](Session& session) { measure_zero_copy(session, *device, kCopyBytes); })) {
    names[row.at("op")] = row.at("nvbandwidth");
    EXPECT_GT(row.at("gb_per_s"), 0.0) << row;
    EXPECT_EQ(kCopyBytes, row.at("copy_bytes"));
  }
  EXPECT_EQ((std::map<std::string, std::string>{{"kernel_read", "host_to_device_memcpy_sm"},
                                                {"kernel_write", "device_to_host_memcpy_sm"},
                                                {"kernel_read_beside_kernel_write", "host_to_device_bidirectional_memcpy_sm"},
                                                {"kernel_write_beside_kernel_read", "device_to_host_bidirectional_memcpy_sm"}}),
            names);
}

// The first two calls are those of the check: up, and down.
TEST_F(LinkTest, KernelsThatCopyNothingAreFound) {
  for (const int forgotten : {0, 1}) {
    const auto device = make_device(make_fake(), 0, forgotten);
    EXPECT_THAT(error_of([&](Session& session) { measure_zero_copy(session, *device, kCopyBytes); }),
                HasSubstr("came back with another value"))
        << forgotten;
  }
}

TEST_F(LinkTest, EachGpuHasItsShareWhileAllCopy) {
  constexpr int kGpus = 3;
  std::vector<std::shared_ptr<FakeCuda>> fakes;
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<Device*> all;
  for (int i = 0; i < kGpus; ++i) {
    fakes.push_back(make_fake(kGpus));
    devices.push_back(make_device(fakes.back(), i));
    all.push_back(devices.back().get());
  }
  std::map<std::string, std::map<std::string, Result>> found;  // op → GPU → row
  for (const auto& row : rows([&](Session& session) { measure_all_gpus(session, all, kCopyBytes); }))
    found[row.at("op")][row.at("gpu")] = row;
  const std::map<std::string, std::string> theirs{{"upload_to_all", "host_to_all_memcpy_ce"},
                                                  {"download_from_all", "all_to_host_memcpy_ce"},
                                                  {"upload_to_all_beside_download", "host_to_all_bidirectional_memcpy_ce"},
                                                  {"download_from_all_beside_upload", "all_to_host_bidirectional_memcpy_ce"}};
  ASSERT_EQ(theirs.size(), found.size());
  for (const auto& [op, name] : theirs) {
    const auto& gpus = found.at(op);
    ASSERT_EQ(kGpus + 1U, gpus.size()) << op;
    double most = 0;
    for (const auto& [gpu, row] : gpus) {
      EXPECT_GT(row.at("share"), 0.0) << row;
      if (gpu == "all") continue;
      EXPECT_EQ(name, row.at("nvbandwidth"));
      most = std::max(most, row.at("gb_per_s").get<double>());
    }
    EXPECT_GT(gpus.at("all").at("gb_per_s"), most) << op;
    EXPECT_FALSE(gpus.at("all").contains("nvbandwidth")) << "NVIDIA's test has no sum";
  }
  for (const auto& fake : fakes) EXPECT_GT(fake->count(FakeCuda::Call::copy_async), 0U) << "a GPU was left out";

  fakes[1]->fail_operation(50, 700);
  EXPECT_THAT(error_of([&](Session& session) { measure_all_gpus(session, all, kCopyBytes); }), HasSubstr("cuda:1"));
}

TEST_F(LinkTest, EveryWayBetweenDiskAndDeviceIsMeasured) {
  const auto device = make_device(make_fake());
  const auto file = make_flow_file(*device, scratch_.path(), 40 * kMiB);
  std::map<std::string, std::string> ops;
  for (const auto& row : rows([&](Session& session) { measure_disk(session, *device, file); })) {
    ops[row.at("op")] = row.value("gdsio", "");
    EXPECT_GT(row.at("gb_per_s"), 0.0) << row;
    EXPECT_EQ(DiskFlow::kBlockBytes, row.at("block_bytes"));
    if (row.contains("gdsio")) continue;
    for (const auto* const key : {"share", "other_gb_per_s", "other_share"}) EXPECT_GT(row.at(key), 0.0) << row;
  }
  EXPECT_EQ((std::map<std::string, std::string>{{"disk_to_host", "-x 1 -I 0"},
                                                {"disk_to_device", "-x 2 -I 0"},
                                                {"host_to_disk", "-x 1 -I 1"},
                                                {"device_to_disk", "-x 2 -I 1"},
                                                {"disk_to_device_beside_device_to_disk", ""}}),
            ops);
  EXPECT_TRUE(std::filesystem::is_empty(scratch_.path()));
}

// Of the check's copies of a block, the first five go down, and the next five up.
TEST_F(LinkTest, BlocksThatAreLostBetweenDiskAndDeviceAreFound) {
  for (const int lost : {0, 4, 5, 9}) {
    LosingDevice device(make_device(make_fake()), DiskFlow::kBlockBytes, lost);
    const auto file = make_flow_file(device, scratch_.path(), 20 * kMiB);
    EXPECT_THAT(error_of([&](Session& session) { measure_disk(session, device, file); }),
                HasSubstr("differ from the data sent"))
        << lost;
  }
}

TEST_F(LinkTest, AFlowWhoseDeviceFailsLeavesNothingInFlight) {
  for (const auto way : {DiskFlow::Way::disk_to_device, DiskFlow::Way::device_to_disk}) {
    const auto fake = make_fake();
    {
      const auto device = make_device(fake);
      DiskFlow flow(*device, make_flow_file(*device, scratch_.path(), 40 * kMiB), way, 0, 10);
      flow.step();
      flow.finish();
      flow.step();  // on another engine and stream
      fake->fail_operation(0, 700);
      EXPECT_THROW(
          {
            for (int i = 0; i < 100; ++i) flow.step();
          },
          Error);
    }
    EXPECT_EQ("", fake->leaks());
  }
}

}  // namespace
}  // namespace terrace::bench
