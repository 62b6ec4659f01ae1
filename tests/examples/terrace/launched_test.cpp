#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <map>
#include <string>
#include <vector>

#include <terrace/core/base/error.h>
#include <terrace/core/base/files.h>
#include <terrace/examples/terrace/base/launched.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::cli {
namespace {

using Variables = std::map<std::string, std::string>;

Environment environment(const Variables& variables) {
  return [&](const char* name) -> const char* {
    const auto at = variables.find(name);
    return at == variables.end() ? nullptr : at->second.c_str();
  };
}
std::optional<Launched> with(const Variables& variables) { return launched(environment(variables)); }
// Ranks, this rank, ranks of this machine, this rank's number among them.
std::vector<int> place_of(const Variables& variables) {
  const auto place = with(variables);
  return place ? std::vector{place->ranks, place->rank, place->local_ranks, place->local_rank} : std::vector<int>();
}
std::string refusal_of(const Variables& variables) {
  return test::refusal_of([&] { demand_alone(environment(variables)); });
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

TEST(Launched, PmiWithTheLocalRanksOfItsLauncher) {
  const Variables pmi{{"PMI_SIZE", "8"}, {"PMI_RANK", "6"}};
  const auto at = [&](Variables more) {
    more.insert(pmi.begin(), pmi.end());
    return place_of(more);
  };
  EXPECT_EQ((std::vector{8, 6, 8, 6}), at({})) << "nothing tells the machine";
  EXPECT_EQ((std::vector{8, 6, 4, 2}), at({{"MPI_LOCALNRANKS", "4"}, {"MPI_LOCALRANKID", "2"}})) << "MPICH";
  EXPECT_EQ((std::vector{8, 6, 4, 2}), at({{"PMI_LOCAL_SIZE", "4"}, {"PMI_LOCAL_RANK", "2"}})) << "Cray";
  EXPECT_EQ((std::vector{8, 6, 4, 2}), at({{"PALS_LOCAL_SIZE", "4"}, {"PALS_LOCAL_RANKID", "2"}})) << "PALS";
  EXPECT_EQ((std::vector{8, 6, 4, 2}), at({{"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}, {"SLURM_LOCALID", "2"}})) << "srun's PMI";
  EXPECT_EQ((std::vector{8, 6, 8, 6}), at({{"SLURM_STEP_TASKS_PER_NODE", "1"}, {"SLURM_LOCALID", "1"}})) << "of another step";
}

TEST(Launched, FluxWhichHasTheNumberOfMachines) {
  EXPECT_EQ((std::vector{7, 5, 4, 1}),
            place_of({{"FLUX_JOB_SIZE", "7"}, {"FLUX_TASK_RANK", "5"}, {"FLUX_JOB_NNODES", "2"}, {"FLUX_TASK_LOCAL_ID", "1"}}));
  EXPECT_EQ((std::vector{7, 5, 4, 1}), place_of({{"PMI_SIZE", "7"},
                                                 {"PMI_RANK", "5"},
                                                 {"FLUX_JOB_SIZE", "7"},
                                                 {"FLUX_JOB_NNODES", "2"},
                                                 {"FLUX_TASK_LOCAL_ID", "1"}}));
}

TEST(Launched, PalsCountsItsRanksWithPmiOrByHand) {
  const Variables rank{{"PALS_RANKID", "3"}, {"PALS_LOCAL_SIZE", "2"}, {"PALS_LOCAL_RANKID", "1"}};
  EXPECT_FALSE(with(rank));
  EXPECT_THAT(refusal_of(rank), testing::AllOf(testing::HasSubstr("as rank 3"), testing::HasSubstr("--env PMI_SIZE=N"),
                                               testing::HasSubstr("env -u PALS_RANKID")));
  auto counted = rank;
  counted["PMI_SIZE"] = "4";
  EXPECT_EQ((std::vector{4, 3, 2, 1}), place_of(counted));
  EXPECT_EQ("", refusal_of({{"PALS_RANKID", "0"}, {"PALS_LOCAL_SIZE", "1"}, {"PALS_LOCAL_RANKID", "0"}})) << "one rank";
}

TEST(Launched, TorchrunIsNoLauncherOfMpi) {
  const Variables two{{"TORCHELASTIC_RUN_ID", "none"}, {"WORLD_SIZE", "2"}, {"RANK", "1"}};
  EXPECT_FALSE(with(two));
  EXPECT_THAT(refusal_of(two),
              testing::AllOf(testing::HasSubstr("torchrun started this process as rank 1 of 2"),
                             testing::HasSubstr("terrace launch -n 2"), testing::HasSubstr("env -u TORCHELASTIC_RUN_ID")));
  EXPECT_EQ("", refusal_of({{"TORCHELASTIC_RUN_ID", "none"}, {"WORLD_SIZE", "1"}, {"RANK", "0"}}));
  EXPECT_EQ("", refusal_of({{"WORLD_SIZE", "2"}, {"RANK", "1"}})) << "of some other program's";
}

// A shell that mpirun started and that outlives it. Without this error, the start of MPI would end the process with a message
// of the library.
TEST(Launched, AnMpirunThatHasEndedIsNamed) {
  const files::FileHandle listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(0, ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address));
  ASSERT_EQ(0, ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length));
  const Variables left{{"OMPI_COMM_WORLD_SIZE", "2"},
                       {"OMPI_COMM_WORLD_RANK", "0"},
                       {"PMIX_SERVER_URI2", "1310720.0;tcp4://127.0.0.1:" + std::to_string(ntohs(address.sin_port))}};
  const auto demanded = [&] { demand_launcher(*with(left), environment(left)); };
  EXPECT_THAT(demanded,
              testing::ThrowsMessage<Error>(testing::AllOf(
                  testing::HasSubstr("OMPI_COMM_WORLD_SIZE says that there are 2 ranks, but the mpirun that said so has "
                                     "ended"),
                  testing::HasSubstr("env -u OMPI_COMM_WORLD_SIZE -u OMPI_COMM_WORLD_RANK terrace"))));
  ASSERT_EQ(0, ::listen(listener.get(), 1));
  EXPECT_NO_THROW(demanded());
}

TEST(Launched, NamesTheVariablesThatCount) {
  const Variables left{{"OMPI_COMM_WORLD_SIZE", "2"},
                       {"OMPI_COMM_WORLD_RANK", "0"},
                       {"SLURM_STEP_NUM_TASKS", "2"},
                       {"SLURM_PROCID", "0"},
                       {"PMI_SIZE", "2"}};
  EXPECT_EQ("OMPI_COMM_WORLD_SIZE", with(left)->said_by);
  EXPECT_EQ(
      "if no launcher started this process, these variables are left over: env -u OMPI_COMM_WORLD_SIZE -u OMPI_COMM_WORLD_RANK "
      "-u SLURM_STEP_NUM_TASKS -u SLURM_PROCID terrace …",
      describe_left_over(environment(left)));
}

}  // namespace
}  // namespace terrace::cli
