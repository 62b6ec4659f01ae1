// Ranks on threads: each runs once, and the error of the rank that failed first is the caller's, whatever the others then see.
#include <gmock/gmock.h>

#include <atomic>
#include <stdexcept>

#include <terrace/core/base/error.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/parallel/comm/agree.h>
#include <terrace/parallel/comm/threads/run_ranks.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace {
namespace {

using testing::HasSubstr;

TEST(RunRanks, EachRankRunsOnce) {
  std::array<std::atomic<int>, 5> runs{};
  run_ranks(5, {}, [&](std::unique_ptr<Communicator> own) {
    EXPECT_EQ(5, own->size());
    ++runs.at(static_cast<std::size_t>(own->rank()));
  });
  for (const auto& count : runs) EXPECT_EQ(1, count);
}

// The others wait in a collective for the rank that fails; they see that it left, which is not the cause.
TEST(RunRanks, TheCauseIsReportedAndNotWhatFollowsFromIt) {
  for (int culprit = 0; culprit < 3; ++culprit) {
    const auto said = test::error_of([&] {
      run_ranks(3, {}, [&](std::unique_ptr<Communicator> own) {
        if (own->rank() == culprit) throw Error("the disk of this rank is full", ErrorKind::failed);
        ThreadPool pool(1);
        const auto device = make_cpu_device(pool);
        Agreement ranks(*own, *device);
        ranks.barrier();
      });
    });
    EXPECT_THAT(said, HasSubstr("the disk of this rank is full")) << "culprit " << culprit;
  }
}

TEST(RunRanks, ErrorsOfAnyTypeReachTheCaller) {
  EXPECT_THROW(run_ranks(2, {},
                         [](auto own) {
                           if (own->rank() == 1) throw std::out_of_range("x");
                         }),
               std::out_of_range);
}

}  // namespace
}  // namespace terrace
