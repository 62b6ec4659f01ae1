// Cores of ranks that their launcher has bound, or not. No mpirun is needed: ranks_test.cpp starts one.
#include <terrace/examples/terrace/ranks/rank_cores.h>

#include <gmock/gmock.h>

namespace terrace::cli {
namespace {

using testing::HasSubstr;

constexpr RankCores kFree{.usable = 16, .bound_to = 16, .of_launcher = 16}, kOne{.usable = 1, .bound_to = 1, .of_launcher = 16},
    kTwo{.usable = 2, .bound_to = 2, .of_launcher = 16}, kQuota{.usable = 4, .bound_to = 16, .of_launcher = 16};

// A rank that has its own cores does not divide them again.
TEST(RankCores, AreSharedUnlessTheLauncherHasSharedThem) {
  EXPECT_EQ(cores_of_rank(kFree, 8), 2);
  EXPECT_EQ(cores_of_rank(kFree, 1), 16);
  EXPECT_EQ(cores_of_rank(kTwo, 8), 2);
  EXPECT_EQ(cores_of_rank(kOne, 8), 1);
  EXPECT_EQ(cores_of_rank(kQuota, 2), 2);
  EXPECT_EQ(cores_of_rank(kQuota, 8), 1);
}

TEST(RankCores, ABindingThatCostsTimeIsNamed) {
  EXPECT_EQ(warning_of_binding(kFree, 8), std::nullopt);
  EXPECT_EQ(warning_of_binding(kTwo, 8), std::nullopt) << "as good as sharing";
  EXPECT_EQ(warning_of_binding(kQuota, 8), std::nullopt);
  EXPECT_THAT(warning_of_binding(kOne, 16).value_or(""), HasSubstr("1 of 16 cores, where its computing waits"));
  EXPECT_THAT(warning_of_binding(kTwo, 2).value_or(""), HasSubstr("2 of 16 cores, and other cores stay idle"));
}

}  // namespace
}  // namespace terrace::cli
