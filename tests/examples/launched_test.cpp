#include <gtest/gtest.h>

#include <map>
#include <string>

#include <terrace/examples/terrace/launched.h>

namespace terrace::cli {
namespace {

std::optional<Launched> with(const std::map<std::string, std::string>& environment) {
  return launched([&](const char* name) -> const char* {
    const auto at = environment.find(name);
    return at == environment.end() ? nullptr : at->second.c_str();
  });
}

TEST(Launched, AloneWithoutALauncher) {
  EXPECT_FALSE(with({}));
  EXPECT_FALSE(with({{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}}));
  EXPECT_FALSE(with({{"OMPI_COMM_WORLD_SIZE", "many"}, {"OMPI_COMM_WORLD_RANK", "0"}}));
  EXPECT_FALSE(with({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}})) << "a batch script is no task";
}

TEST(Launched, OpenMpi) {
  const auto place = with({{"OMPI_COMM_WORLD_SIZE", "8"},
                           {"OMPI_COMM_WORLD_RANK", "5"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}});
  ASSERT_TRUE(place);
  EXPECT_EQ(place->ranks, 8);
  EXPECT_EQ(place->rank, 5);
  EXPECT_EQ(place->local_ranks, 4);
  EXPECT_EQ(place->local_rank, 1);
}

TEST(Launched, Slurm) {
  const auto place = with(
      {{"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_PROCID", "6"}, {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}, {"SLURM_LOCALID", "2"}});
  ASSERT_TRUE(place);
  EXPECT_EQ(place->ranks, 8);
  EXPECT_EQ(place->local_ranks, 4);
  EXPECT_EQ(place->local_rank, 2);
}

}  // namespace
}  // namespace terrace::cli
