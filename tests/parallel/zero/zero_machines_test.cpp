// Training on ranks that count as on several machines: the order of the sums, and the bytes by link.
#include <gtest/gtest.h>

#include <memory>

#include <terrace/tests/parallel/comm/oracle.h>
#include <terrace/tests/parallel/zero/data_parallel_run.h>

namespace terrace {
namespace {

using test::Buffer;

// Ranks on one machine whose sums follow the specification: every rank gathers all contributions and adds them one element at a
// time.
class OracleCommunicator final : public Communicator {
 public:
  OracleCommunicator(std::unique_ptr<Communicator> inner, test::MachineSizes sizes)
      : inner_(std::move(inner)), sizes_(std::move(sizes)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::string& name() const override { return inner_->name(); }
  const comm::Machines& machines() const override { return inner_->machines(); }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    return inner_->split(color, key, name);
  }

  void issue(Stream& stream, comm::Call call) override {
    const bool scatters = call.operation == comm::Operation::reduce_scatter;
    if (!scatters && call.operation != comm::Operation::all_reduce) return inner_->issue(stream, std::move(call));
    const auto ranks = static_cast<std::size_t>(size());
    const auto all = std::make_shared<Buffer>(call.from.front().size() * ranks);
    inner_->all_gather(stream, call.from.front(), *all);
    stream.submit([this, call, all, ranks, scatters] {
      std::vector<Buffer> from;
      const auto each = all->size() / ranks;
      for (std::size_t r = 0; r < ranks; ++r)
        from.emplace_back(all->begin() + static_cast<std::ptrdiff_t>(r * each),
                          all->begin() + static_cast<std::ptrdiff_t>((r + 1) * each));
      const auto& to = call.to.front();
      const auto count = to.size() / call.reduction.to_bytes();
      const Buffer old(to.begin(), to.end());
      std::ranges::copy(
          test::fold_oracle(call.reduction, from, scatters ? count * static_cast<std::size_t>(rank()) : 0, count, old, sizes_),
          to.begin());
    });
  }

 private:
  const std::unique_ptr<Communicator> inner_;
  const test::MachineSizes sizes_;
};

class ZeroOnMachines : public test::FolderTest {
 protected:
  toy::RunResult run(toy::RunOptions o, int ranks_per_machine) {
    o.store = folder_ / ("run" + std::to_string(runs_++));
    o.profile.links.ranks_per_node = static_cast<std::uint32_t>(ranks_per_machine);
    const auto all = toy::run_ranks(o, {.time_limit = std::chrono::seconds(60), .ranks_per_machine = ranks_per_machine});
    for (const auto& error : all.errors) EXPECT_EQ(error, "");
    for (const auto& rank : all.ranks) EXPECT_EQ(rank.hash, all.ranks.front().hash);
    return all.ranks.front();
  }
  toy::RunResult oracle(toy::RunOptions o, const test::MachineSizes& sizes) {
    o.store = folder_ / ("run" + std::to_string(runs_++));
    std::vector<toy::RunResult> all(o.data.ranks);
    const auto errors =
        test::on_threads(static_cast<int>(o.data.ranks), {.time_limit = std::chrono::seconds(60)}, [&](test::Rank& rank) {
          const auto r = rank.comm->rank();
          OracleCommunicator comm(std::move(rank.comm), sizes);
          all[static_cast<std::size_t>(r)] = toy::run(toy::of_rank(o, r), &comm);
        });
    for (const auto& error : errors) EXPECT_EQ(error, "");
    return all.front();
  }
  static toy::RunOptions options(std::uint32_t ranks, std::uint32_t zero) {
    toy::RunOptions o;
    o.shape = {{1, 8}, 2};
    o.data = {.ranks = ranks, .zero = zero};
    return o;
  }

  int runs_ = 0;
};

TEST_F(ZeroOnMachines, TheWeightsAreThoseOfTheWrittenOrder) {
  for (const std::uint32_t zero : {0U, 1U, 2U, 3U}) {
    const auto of_four = options(4, zero);
    const auto two_by_two = run(of_four, 2);
    EXPECT_EQ(two_by_two.hash, oracle(of_four, {2, 2}).hash) << "ZeRO-" << zero;
    EXPECT_EQ(two_by_two.losses, run(of_four, 2).losses) << "a second time, ZeRO-" << zero;
    EXPECT_NE(two_by_two.hash, run(of_four, 0).hash) << "the orders are not told apart";
    EXPECT_EQ(run(of_four, 3).hash, oracle(of_four, {3, 1}).hash) << "ZeRO-" << zero;
  }
  const auto of_three = options(3, 2);
  EXPECT_EQ(run(of_three, 1).hash, oracle(of_three, {1, 1, 1}).hash);
}

TEST_F(ZeroOnMachines, BudgetsAndTiersDoNotChangeTheWeights) {
  const auto wide = options(4, 3);
  const auto want = run(wide, 2).hash;
  for (const bool disk : {false, true}) {
    auto tight = wide;
    toy::squeeze(tight, disk);
    EXPECT_EQ(run(tight, 2).hash, want) << (disk ? "with a disk" : "without a disk");
  }
}

TEST_F(ZeroOnMachines, TheOrderOfRanksDoesNotKnowMachines) {
  auto o = options(4, 2);
  const auto on_one = run(o, 0).hash;
  o.data.sums = comm::SumOrder::ranks;
  EXPECT_EQ(run(o, 2).hash, on_one);
  o.data = {.ranks = 4, .zero = 2, .canonical = true};
  const auto canonical = run(o, 0).hash;
  EXPECT_EQ(run(o, 2).hash, canonical);
  EXPECT_EQ(run(o, 1).hash, canonical);
}

// The plan's bytes on both links equal those in the ledger of a step.
TEST_F(ZeroOnMachines, ThePlansLinkBytesAreTheLedgers) {
  for (const auto& [ranks, each] : {std::pair{4U, 2U}, {8U, 2U}, {6U, 3U}, {4U, 1U}})
    for (const std::uint32_t zero : {0U, 1U, 2U, 3U})
      for (const auto& [recipe, gradients] :
           {std::pair{"fp32", Travel::whole}, {"all-bf16", Travel::whole}, {"fp32", Travel::int8}, {"fp32", Travel::bf16}})
        for (const auto order : {comm::SumOrder::machines, comm::SumOrder::ranks}) {
          const bool usual = gradients == Travel::whole && recipe == std::string("fp32");
          if (!usual && (zero < 2 || order == comm::SumOrder::ranks || ranks == 6)) continue;
          auto o = options(ranks, zero);
          o.store = folder_;
          o.sizes.dtype = DType::bf16;
          o.recipe = recipe;
          o.data.gradients = gradients;
          o.data.sums = order;
          o.profile.links.ranks_per_node = each;
          o.before_use = false;
          const auto planned = plan(toy::make_model(o.sizes), toy::request_of(o), o.profile).steady_links;
          const auto sent = toy::last_step(o, static_cast<int>(ranks) - 1).sent.by_link();
          const auto what = std::to_string(ranks) + " ranks, ZeRO-" + std::to_string(zero) + ", " + recipe;
          const double small = 64.0 * ranks;  // blocks of losses and squares do not divide evenly
          EXPECT_NEAR(planned.within, static_cast<double>(sent.within), small) << what;
          EXPECT_NEAR(planned.between, static_cast<double>(sent.between), small) << what;
          EXPECT_GT(sent.between, 0U) << what;
        }
}

}  // namespace
}  // namespace terrace
