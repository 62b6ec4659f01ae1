// The micro-batches that are chosen for a published model, from plans for machines of given rates.
#include <gmock/gmock.h>

#include <terrace/examples/terrace/plan/choose_batch.h>

namespace terrace::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

cli::RunConfig published() {
  cli::RunConfig c;
  c.model.layers = 4, c.model.hidden = 256, c.model.heads = 4, c.model.seq_len = 256, c.model.vocab = 512;
  c.model.dtype = DType::bf16;
  c.memory.device = c.found.device = "cpu";
  c.memory.device_memory = c.memory.host_memory = "1GiB";
  c.found.chooses_batch = true;
  return c;
}
// The same model with its state on the disk.
cli::RunConfig on_disk() {
  auto c = published();
  c.memory.device_memory = "16MiB", c.memory.host_memory = "16MiB";
  c.memory.nvme_path = {"/"};
  return c;
}
MachineProfile with_disk(double bytes_a_second) {
  MachineProfile p;
  p.disk_read = p.disk_write = bytes_a_second;
  p.disk_both = 2 * bytes_a_second;
  return p;
}
struct Chosen {
  std::int64_t batch_size = 0, micro_batches = 0;
  std::vector<std::string> said;
  [[nodiscard]] std::int64_t sequences() const { return batch_size * micro_batches; }
};
Chosen chosen(const cli::RunConfig& c, const MachineProfile& profile, std::uint64_t sequences = 0) {
  const auto with = cli::with_chosen_batch(c, profile, [=] { return sequences; });
  return {with.train.batch_size, with.train.grad_accumulation, with.found.chosen};
}

TEST(ChosenBatch, IsTheUsualOneWhereAllFits) {
  const auto of = chosen(published(), MachineProfile());
  EXPECT_EQ(8, of.batch_size);
  EXPECT_EQ(1, of.micro_batches);
  EXPECT_THAT(of.said, IsEmpty()) << "nothing was chosen";
}

TEST(ChosenBatch, HoldsFewerActivationsAtOnceWhereTheyDoNotFit) {
  auto c = published();
  c.memory.device_memory = "8MiB", c.memory.host_memory = "64MiB";
  const auto of = chosen(c, MachineProfile());
  EXPECT_LT(of.batch_size, 8);
  EXPECT_EQ(8, of.sequences());
  EXPECT_THAT(of.said, ElementsAre(HasSubstr("(8 sequences a step, ")));
}

TEST(ChosenBatch, GrowsUntilAStepComputesForLongerThanItMoves) {
  std::int64_t before = 8;
  for (const double rate : {2.5e9, 5e7, 1e6}) {
    const auto of = chosen(on_disk(), with_disk(rate));
    EXPECT_GE(of.sequences(), before) << rate;
    EXPECT_LE(of.sequences(), 64) << rate;
    before = of.sequences();
    if (rate == 1e6) {
      EXPECT_THAT(of.said,
                  ElementsAre(HasSubstr("64 sequences a step, because a step moves bytes for longer than it computes")));
    }
  }
  EXPECT_EQ(64, before);
}

TEST(ChosenBatch, LeavesAnEpochThirtyTwoSteps) {
  EXPECT_EQ(8, chosen(on_disk(), with_disk(1e6), 300).sequences());
  EXPECT_EQ(16, chosen(on_disk(), with_disk(1e6), 32 * 16).sequences());
  EXPECT_EQ(32, chosen(on_disk(), with_disk(1e6), 32 * 63).sequences());
}

TEST(ChosenBatch, IsLeftAsItIsWhereItIsGivenOrOthersDependOnIt) {
  for (const auto& change : std::vector<std::function<void(cli::RunConfig&)>>{
           [](cli::RunConfig& c) { c.found.chooses_batch = false; }, [](cli::RunConfig& c) { c.parallel.pp = 2; },
           [](cli::RunConfig& c) { c.plan.group = 1; }, [](cli::RunConfig& c) { c.parallel.sync_interval = 2; }}) {
    auto c = on_disk();
    change(c);
    EXPECT_EQ(8, chosen(c, with_disk(1e6)).batch_size);
    EXPECT_EQ(1, chosen(c, with_disk(1e6)).micro_batches);
  }
}

}  // namespace
}  // namespace terrace::test
