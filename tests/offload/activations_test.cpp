// Saved tensors come back with their bits: in any order, over the disk, on several threads, and without a race on a fake GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <terrace/core/cuda/stream.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/offload/manager/activations.h>
#include <terrace/tests/support/environment.h>
#include <terrace/tests/support/test_device.h>

#include <terrace/tests/offload/temporary_directory.h>

namespace terrace {
namespace {

using test::FakeCuda;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::uint64_t kPiece = 3 * kPageBytes;

struct Tensor {
  std::vector<std::byte> bytes;
  Activations::Saved saved;
};

// A forward and a backward in the order of a stream, or of the caller. Every buffer is reused at once.
class Steps {
 public:
  Steps(std::uint64_t seed, Activations& activations, Stream* stream)
      : random_(seed), activations_(activations), stream_(stream) {}

  void run(int steps, bool backwards) {
    for (auto n = 4 + random_() % 8; n > 0; --n) sizes_.push_back(random_size());
    for (int step = 0; step < steps; ++step) {
      std::vector<Tensor> tensors;
      for (const auto size : sizes_) tensors.push_back(forward(size));
      std::ranges::reverse(tensors);
      if (!backwards) std::ranges::shuffle(tensors, random_);
      for (auto& tensor : tensors) backward(tensor, random_() % 8 == 0);
    }
    if (stream_) stream_->synchronize();
  }

 private:
  std::uint64_t random_size() {
    const std::uint64_t sizes[] = {0, 1, kPageBytes - 1, kPiece, 2 * kPiece + 17, random_() % (3 * kPiece)};
    return sizes[random_() % std::size(sizes)];
  }
  void work(std::function<void()> what) { stream_ ? stream_->submit(std::move(what)) : what(); }

  Tensor forward(std::uint64_t size) {
    Tensor tensor{std::vector<std::byte>(size), {}};
    std::ranges::generate(tensor.bytes, [&] { return static_cast<std::byte>(random_()); });
    const auto buffer = std::make_shared<std::vector<std::byte>>(size);
    work([buffer, content = tensor.bytes] { std::ranges::copy(content, buffer->begin()); });
    tensor.saved = activations_.offload(*buffer, stream_);
    work([buffer] { std::ranges::fill(*buffer, std::byte{0xEE}); });
    return tensor;
  }
  // `unused`: the handle ends without a fetch. Some are fetched twice.
  void backward(Tensor& tensor, bool unused) {
    const auto saved = std::move(tensor.saved);
    EXPECT_EQ(saved.bytes(), tensor.bytes.size());
    for (int times = unused ? 0 : 1 + static_cast<int>(random_() % 8 == 0); times > 0; --times) {
      const auto buffer = std::make_shared<std::vector<std::byte>>(tensor.bytes.size());
      activations_.fetch(saved, *buffer, stream_);
      work([buffer, content = tensor.bytes] { EXPECT_TRUE(*buffer == content) << content.size() << " bytes"; });
    }
  }

  std::mt19937_64 random_;
  Activations& activations_;
  Stream* const stream_;
  std::vector<std::uint64_t> sizes_;
};

OffloadOptions small(const test::TemporaryDirectory& folder, Device* device, std::uint64_t host_pages = 8) {
  return {.device_bytes = kPageBytes,
          .host_bytes = host_pages * kPageBytes,
          .nvme_paths = {folder.path()},
          .nvme_bytes = 200 * kPageBytes,
          .device = device,
          .io = {.engine = "threads"}};
}

TEST(Activations, RandomTensorsComeBackInAnyOrderWithinTheBudgets) {
  const auto first = test::test_seed();
  fmt::print("seeds {} to {}\n", first, first + 39);
  ThreadPool pool(1);
  const auto device = make_host_device(pool);
  const auto stream = device->make_stream("steps");
  const test::TemporaryDirectory folder;
  for (auto seed = first; seed < first + 40; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    ChunkManager manager(small(folder, device.get(), 5 + seed % 9));
    Activations activations(manager, {.piece_bytes = kPiece});
    Steps steps(seed, activations, seed % 3 == 0 ? nullptr : stream.get());
    steps.run(4, seed % 2 == 0);
    EXPECT_LE(manager.peak_bytes()[Tier::host], (5 + seed % 9) * kPageBytes);
    if (HasFailure()) return;
  }
}

TEST(Activations, ThreadsShareTheBudgets) {
  ThreadPool pool(1);
  const auto device = make_host_device(pool);
  const test::TemporaryDirectory folder;
  auto options = small(folder, device.get(), 14);
  options.nvme_bytes = 800 * kPageBytes;
  ChunkManager manager(options);
  Activations activations(manager, {.piece_bytes = kPiece});
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      const auto stream = device->make_stream("of a thread");
      Steps(test::test_seed() + i, activations, stream.get()).run(8, i % 2 == 0);
    });
  for (auto& thread : threads) thread.join();
}

// Of twenty tensors, the host holds five. Each later step moves the same bytes, and the disk holds no more.
TEST(Activations, StepsUseTheirChunksAgainAndReadEachPieceOnce) {
  ThreadPool pool(1);
  const auto device = make_host_device(pool);
  const test::TemporaryDirectory folder;
  ChunkManager manager(small(folder, device.get(), 5));
  Activations activations(manager, {.piece_bytes = kPageBytes});
  std::vector<std::byte> bytes(kPageBytes, std::byte{7});
  std::optional<std::uint64_t> disk;
  for (int step = 0; step < 5; ++step) {
    std::vector<Activations::Saved> saved;
    for (int i = 0; i < 20; ++i) saved.push_back(activations.offload(bytes));
    const auto before = manager.traffic();
    for (; !saved.empty(); saved.pop_back()) activations.fetch(saved.back(), bytes);
    EXPECT_EQ(manager.traffic().read - before.read, 15 * kPageBytes);
    EXPECT_EQ(disk.value_or(manager.peak_bytes()[Tier::disk]), manager.peak_bytes()[Tier::disk]);
    disk = manager.peak_bytes()[Tier::disk];
  }
  EXPECT_LE(*disk, 20 * kPageBytes);
  const auto id = manager.add(kPageBytes);
  EXPECT_LT(index(id), 20U) << "an id that a tensor has given back";
  const auto before = manager.traffic().read;
  {
    std::vector<Activations::Saved> unused;
    for (int i = 0; i < 20; ++i) unused.push_back(activations.offload(bytes));
  }
  EXPECT_EQ(manager.traffic().read, before) << "what is dropped is not read";
}

TEST(Activations, ErrorsNameTheTierTheBudgetAndTheMissingBytes) {
  ThreadPool pool(1);
  const auto device = make_host_device(pool);
  ChunkManager manager({.host_bytes = 4 * kPageBytes, .device = device.get()});
  std::vector<std::byte> bytes(5 * kPageBytes);
  const auto refusal = [&](std::uint64_t piece) -> std::string {
    Activations activations(manager, {.piece_bytes = piece});
    try {
      (void)activations.offload(bytes);
    } catch (const memory::DoesNotFit& error) {
      return error.what();
    }
    return "it fits";
  };
  EXPECT_THAT(refusal(5 * kPageBytes),
              HasSubstr("on the host tier does not fit its budget of 16.0 KiB: 4096 bytes are missing"));
  EXPECT_THAT(refusal(kPageBytes),
              testing::AllOf(HasSubstr("host tier: a request of 4.00 KiB does not fit, 4.00 KiB are missing"),
                             HasSubstr("budget 16.0 KiB")));
  Activations activations(manager);
  bytes.resize(4 * kPageBytes);
  const auto saved = activations.offload(bytes);  // the refused calls have left nothing behind
  EXPECT_THROW(activations.fetch(saved, std::span(bytes).first(1)), std::logic_error);
  EXPECT_THROW(activations.fetch({}, {}), std::logic_error);
  EXPECT_THROW(Activations(manager, {.piece_bytes = 0}), Error);
}

TEST(Activations, AreNeverCommitted) {
  ThreadPool pool(1);
  const auto device = make_host_device(pool);
  const test::TemporaryDirectory folder;
  auto options = small(folder, device.get());
  options.store = "kept";
  std::vector<std::byte> bytes(kPageBytes, std::byte{3});
  for (int life = 0; life < 2; ++life) {
    ChunkManager manager(options);
    Activations activations(manager);
    const auto weight = manager.add("weight", kPageBytes);
    EXPECT_EQ(manager.has_content(weight), life == 1);
    std::ranges::fill(manager.acquire(weight, Tier::host, Access::overwrite).bytes(), std::byte{5});
    const auto saved = activations.offload(bytes);
    manager.commit(1, "");
    EXPECT_EQ(manager.traffic().write, kPageBytes) << "the weight alone";
    activations.fetch(saved, bytes);
    EXPECT_EQ(bytes.back(), std::byte{3});
  }
}

// One buffer on a fake GPU, whose kernels and copies wait for nothing by themselves.
class ActivationsOnGpu : public testing::TestWithParam<bool> {  // on a stream of the caller's
 protected:
  ActivationsOnGpu() {
    EXPECT_EQ(fake_->set_device(0), 0);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(fake_->create_stream(&raw_[i]), 0);
      streams_[i] = device_->adopt_stream(raw_[i], "mine");
    }
    own_ = device_->make_stream("own");
  }
  ~ActivationsOnGpu() override {
    own_.reset();
    for (std::size_t i = 0; i < 2; ++i) {
      streams_[i].reset();
      EXPECT_EQ(fake_->synchronize_stream(raw_[i]), 0);
      EXPECT_EQ(fake_->destroy_stream(raw_[i]), 0);
    }
  }
  Stream& stream() { return GetParam() ? *streams_[0] : *own_; }
  // Sets all bytes, or, with `expected`, compares them. On `other` stream it is a mistake.
  void launch(std::byte value, bool expected, bool other = false) {
    FakeCuda::Touched touched{.name = "a kernel"};
    touched.add(buffer_.data(), kBytes, !expected);
    auto go = [this, touched, value, expected](cuda::CudaStreamHandle handle) {
      EXPECT_EQ(fake_->launch_touching(handle, touched,
                                       [this, value, expected, here = fake_->reach(buffer_.data())] {
                                         if (!expected) std::fill_n(here, kBytes, value);
                                         wrong_ += std::all_of(here, here + kBytes, [&](auto b) { return b == value; }) ? 0 : 1;
                                       }),
                0);
    };
    other ? go(raw_[1]) : GetParam() ? go(raw_[0]) : cuda::cuda_stream(*own_).launch(std::move(go));
  }
  void finish() {
    stream().synchronize();
    streams_[1]->synchronize();
  }

  static constexpr std::uint64_t kBytes = 2 * kPiece + 40;
  const std::shared_ptr<FakeCuda> fake_ = std::make_shared<FakeCuda>(FakeCuda::Options{.lazy_seed = test::test_seed()});
  ThreadPool pool_{1};
  const std::unique_ptr<Device> device_ = test::make_asynchronous_fake_device(fake_, pool_);
  cuda::CudaStreamHandle raw_[2] = {};
  std::unique_ptr<Stream> streams_[2], own_;
  const Slab buffer_ = device_->memory().allocate(round_up(kBytes, kPageBytes));
  int wrong_ = 0;
};

TEST_P(ActivationsOnGpu, StreamsCopyWithoutARace) {
  fmt::print("seed {}\n", test::test_seed());
  const test::TemporaryDirectory folder;
  ChunkManager manager(small(folder, device_.get()));
  Activations activations(manager, {.piece_bytes = kPiece});
  std::vector<Activations::Saved> saved;
  for (int step = 0; step < 3; ++step) {
    for (int i = 0; i < 6; ++i) {
      launch(static_cast<std::byte>(i), false);
      saved.push_back(activations.offload({buffer_.data(), kBytes}, &stream()));
    }
    for (int i = 5; i >= 0; --i, saved.pop_back()) {
      activations.fetch(saved.back(), {buffer_.data(), kBytes}, &stream());
      launch(static_cast<std::byte>(i), true);
    }
  }
  finish();
  EXPECT_EQ(wrong_, 0);
  EXPECT_THAT(fake_->complaints(), IsEmpty());
}

// A kernel on another stream that does not wait: before the copy out, after it, after the copy back.
TEST_P(ActivationsOnGpu, AnOmittedWaitIsFoundAsARace) {
  const test::TemporaryDirectory folder;
  ChunkManager manager(small(folder, device_.get(), 20));
  Activations activations(manager, {.piece_bytes = kPiece});
  std::size_t found = 0;
  for (int mistake = 0; mistake < 3; ++mistake) {
    SCOPED_TRACE(mistake);
    launch(std::byte{1}, false, mistake == 0);
    const auto saved = activations.offload({buffer_.data(), kBytes}, &stream());
    if (mistake == 1) launch(std::byte{2}, false, true);
    activations.fetch(saved, {buffer_.data(), kBytes}, &stream());
    if (mistake == 2) launch(std::byte{1}, true, true);
    finish();
    EXPECT_GT(fake_->complaints().size(), found);
    found = fake_->complaints().size();
    EXPECT_THAT(fake_->complaints(), testing::Each(HasSubstr("a race: ")));
  }
}

std::string in_words(const testing::TestParamInfo<bool>& adopted) { return adopted.param ? "adopted" : "own"; }
INSTANTIATE_TEST_SUITE_P(Streams, ActivationsOnGpu, testing::Bool(), in_words);

}  // namespace
}  // namespace terrace
