// GPUDirect Storage when it is absent, refuses or fails, with a fake library that ends the process if a rule of cuFile is
// broken.
#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include <terrace/offload/cufile.h>
#include <terrace/offload/extent_files.h>

#include "pages.h"
#include "temporary_directory.h"

namespace terrace {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::uint64_t kBytes = 64 * kPageBytes;

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

class CuFileEngine : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(file_);
    ASSERT_EQ(0, ::ftruncate(file_.get(), static_cast<off_t>(kBytes)));
    test::fill_random(memory_.span().first(kBytes), 11);
  }
  [[nodiscard]] std::unique_ptr<IoEngine> make(const CuFileOptions& with = {.library = TERRACE_FAKE_CUFILE}) {
    return make_cufile_engine({.queue_depth = 4, .files = {file_.get()}, .buffers = {memory_.span()}}, why_, with);
  }
  // Transfers all pages at once and returns the errors of the requests.
  std::vector<int> transfer(IoEngine& engine, IoRequest::Op op, std::byte* at) {
    std::deque<IoRequest> requests;
    std::vector<int> errors;
    for (std::uint64_t offset = 0; offset < kBytes; offset += 4 * kPageBytes) {
      requests.push_back({op, 0, offset, at + offset, 4 * kPageBytes, [&](IoRequest&, int error) {
                            if (error != 0) errors.push_back(error);
                          }});
      IoRequest* const one = &requests.back();
      engine.submit({&one, 1});
    }
    while (engine.in_flight() > 0) engine.poll(1s);
    return errors;
  }
  // Written bytes must be read back.
  void expect_round_trip(IoEngine& engine) {
    EXPECT_THAT(transfer(engine, IoRequest::Op::write, memory_.data()), IsEmpty());
    EXPECT_THAT(transfer(engine, IoRequest::Op::read, memory_.data() + kBytes), IsEmpty());
    EXPECT_EQ(0, std::memcmp(memory_.data(), memory_.data() + kBytes, kBytes));
  }

  test::TemporaryDirectory directory_;
  FileHandle file_{::open((directory_.path() / "f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_DIRECT, 0600)};
  test::Pages memory_{2 * kBytes};
  std::string why_;
};

TEST_F(CuFileEngine, SaysWhyThereIsNone) {
  EXPECT_EQ(nullptr, make({.library = "libcufile-that-is-not-there.so"}));
  EXPECT_THAT(why_, HasSubstr("libcufile-that-is-not-there.so"));
  EXPECT_EQ(nullptr, make({.library = "libm.so.6"}));
  EXPECT_THAT(why_, HasSubstr("cuFileDriverOpen"));
  const Variable driver("TERRACE_FAKE_CUFILE_DRIVER", "5001");
  EXPECT_EQ(nullptr, make());
  EXPECT_THAT(why_, HasSubstr("nvidia-fs driver is not loaded (5001)"));
}

TEST_F(CuFileEngine, ReleasesWhatItRegistered) {
  void* const library = ::dlopen(TERRACE_FAKE_CUFILE, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(nullptr, library);
  const auto registered = reinterpret_cast<std::size_t (*)()>(::dlsym(library, "terrace_fake_cufile_registered"));
  ASSERT_NE(nullptr, registered);
  EXPECT_EQ(0U, registered());
  {
    const auto engine = make();
    ASSERT_NE(nullptr, engine) << why_;
    EXPECT_EQ(2U, registered()) << "a file and a buffer";
    expect_round_trip(*engine);
  }
  EXPECT_EQ(0U, registered());
}

TEST_F(CuFileEngine, AFileThatItRefusesIsReadAndWrittenWithoutIt) {
  const Variable files("TERRACE_FAKE_CUFILE_FILES", "5008");
  testing::internal::CaptureStderr();
  const auto engine = make();
  ASSERT_NE(nullptr, engine) << why_;
  const auto said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("a file is read and written without cuFile: the file system is not supported (5008)"));
  expect_round_trip(*engine);
}

TEST_F(CuFileEngine, MemoryThatItRefusesIsUsedUnregistered) {
  const Variable memory("TERRACE_FAKE_CUFILE_MEMORY", "5036");
  testing::internal::CaptureStderr();
  const auto engine = make();
  ASSERT_NE(nullptr, engine) << why_;
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("memory is used without registration: not enough memory"));
  expect_round_trip(*engine);
}

TEST_F(CuFileEngine, ItsOwnErrorsEndTheirRequests) {
  for (const auto& [code, error] : {std::pair{"5025", EIO}, {"5043", ENOMEM}}) {
    const Variable io("TERRACE_FAKE_CUFILE_IO", code);
    testing::internal::CaptureStderr();
    {
      const auto engine = make();
      ASSERT_NE(nullptr, engine) << why_;
      const auto errors = transfer(*engine, IoRequest::Op::write, memory_.data());
      EXPECT_FALSE(errors.empty());
      EXPECT_LT(errors.size(), kBytes / (4 * kPageBytes)) << "others end well";
      EXPECT_THAT(errors, testing::Each(error));
    }
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(code)) << "its own number is told";
  }
}

TEST_F(CuFileEngine, EveryThreadIsPreparedBeforeItsFirstTransfer) {
  static thread_local bool entered = false;
  std::atomic<int> threads{0};
  {
    const auto engine = make({.library = TERRACE_FAKE_CUFILE, .threads = 3, .enter = [&] {
                                EXPECT_FALSE(std::exchange(entered, true));
                                ++threads;
                              }});
    ASSERT_NE(nullptr, engine) << why_;
    expect_round_trip(*engine);
  }
  EXPECT_EQ(3, threads);
  EXPECT_FALSE(entered) << "the caller's thread is its own";
}

}  // namespace
}  // namespace terrace
