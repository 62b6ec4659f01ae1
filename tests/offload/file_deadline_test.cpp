// File operations with a deadline: their results, and the resources that remain afterwards.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <future>
#include <thread>

#include <terrace/offload/io/file_ops.h>
#include <terrace/offload/store/extent_files.h>
#include <terrace/tests/support/open_descriptors.h>

#include <terrace/tests/offload/temporary_directory.h>

namespace terrace {
namespace {

using namespace std::chrono_literals;
using test::open_descriptors;

// A sync that waits until the test releases it.
class Patient final : public io::FileOps {
 public:
  explicit Patient(std::shared_future<void> go_on) : go_on_(std::move(go_on)) {}
  int create(int, const std::string&) override { return -ENOSYS; }
  std::int64_t read(int, std::span<std::byte>) override { return -ENOSYS; }
  std::int64_t write(int, std::span<const std::byte>) override { return -ENOSYS; }
  int sync(int) override {
    go_on_.wait();
    return 0;
  }
  int rename(int, const std::string&, const std::string&) override { return -ENOSYS; }
  int remove(int, const std::string&) override { return -ENOSYS; }
  int allocate(int, std::uint64_t) override { return -ENOSYS; }
  int switch_off_copy_on_write(int) override { return -ENOSYS; }

 private:
  std::shared_future<void> go_on_;
};

TEST(FileDeadline, HasClosedItsOwnDescriptorWhenItAnswers) {
  test::TemporaryDirectory directory;
  const files::FileHandle file(::open((directory.path() / "f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  const auto ops = io::with_deadline(io::make_file_ops(), 60s);
  const auto before = open_descriptors();
  for (int i = 0; i < 300; ++i) {
    ASSERT_EQ(0, ops->sync(file.get()));
    ASSERT_EQ(before, open_descriptors()) << "call " << i;
  }
}

TEST(FileDeadline, ACallThatDoesNotEndGivesEtimeAndMayEndLater) {
  test::TemporaryDirectory directory;
  const files::FileHandle file(::open((directory.path() / "f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  std::promise<void> go_on;
  const auto before = open_descriptors();
  {
    const auto ops = io::with_deadline(std::make_shared<Patient>(go_on.get_future().share()), 20ms);
    EXPECT_EQ(-ETIME, ops->sync(file.get()));
  }
  EXPECT_EQ(before + 1, open_descriptors());  // the running call still has its own descriptor
  go_on.set_value();
  for (int i = 0; i < 600 && open_descriptors() != before; ++i) std::this_thread::sleep_for(100ms);
  EXPECT_EQ(before, open_descriptors());
}

}  // namespace
}  // namespace terrace
