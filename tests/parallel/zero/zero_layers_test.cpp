// What optimizers of whole layers send and hold where ranks share layers. (one_rank_bits_test.cpp has the bits.)
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include <terrace/tests/doubles/ledger.h>

#include <terrace/tests/parallel/zero/data_parallel_run.h>
#include <terrace/tests/support/data_ranks.h>

namespace terrace {
namespace {

constexpr const char* kOptimizers[] = {"lamb", "adafactor", "muon"};

class ZeroLayers : public test::FolderTest {
 protected:
  static toy::RunOptions options(const std::string& optimizer, const test::DataRanks& data, std::uint32_t micro_batches = 12) {
    toy::RunOptions o;
    o.steps = 2;
    o.sizes.blocks = 1;
    o.depth = 1;
    o.make_optimizer = [=] { return make_optimizer(optimizer, {}); };
    o.data = data;
    o.data.canonical = true;
    o.shape = {{1, 8}, micro_batches / data.ranks};
    return o;
  }
};

std::string name(const std::string& optimizer, const test::DataRanks& data) {
  return optimizer + ", " + std::to_string(data.ranks) + " ranks, ZeRO-" + std::to_string(data.zero) +
         (data.shard_group == 0 ? "" : " in groups of " + std::to_string(data.shard_group));
}

// Beyond what AdamW sends, LAMB sends two fp64 sums for each tensor and block of 4,096 elements; Adafactor sends one such sum
// and all directions; Muon sends the directions of the groups of chunks that hidden matrices reach. Nothing else is sent.
TEST_F(ZeroLayers, TheLedgerIsTheFormula) {
  const auto ledger_of = [](const toy::RunOptions& o) {
    const auto last = toy::last_step(o, 1);
    std::filesystem::remove_all(o.store);
    return last.sent;
  };
  for (const std::uint32_t ranks : {2U, 3U})
    for (const std::uint32_t zero : {1U, 2U, 3U})
      for (const std::string optimizer : kOptimizers) {
        auto o = options(optimizer, {.ranks = ranks, .zero = zero});
        o.store = folder_ / "store";
        o.sizes.dtype = DType::bf16;
        o.sizes.vocab = 300;  // the last block of a table is not whole
        const auto model = toy::make_model(o.sizes);
        const auto planned = plan(model, toy::request_of(o), o.profile);
        const StepMap map(model, planned.map);
        constexpr std::uint64_t kBlock = 4096;
        std::uint64_t blocks = 0, all = 0, hidden = 0;  // blocks of tensors; elements of all and of hidden groups
        for (std::uint32_t l = 0; l < map.layers(); ++l) {
          const auto run = map.layout().chunks_of(l) * map.layout().chunk_elements();
          all += run;
          if (l != 0 && l + 1 != map.layers()) {  // two matrices, and a bias
            const auto& last = map.layout().place(l, 1);
            hidden += round_up(last.first_element + last.elements, map.layout().chunk_elements() * ranks);
          }
          for (std::uint32_t t = 0; t < map.layout().tensors_of(l); ++t) {
            const auto& place = map.layout().place(l, t);
            blocks += (place.first_element + place.elements - 1) / kBlock - place.first_element / kBlock + 1;
          }
        }
        const auto sums = (optimizer == "lamb" ? 2 : optimizer == "adafactor" ? 1 : 0) * blocks * sizeof(double);
        const auto directions = (optimizer == "lamb" ? 0 : optimizer == "adafactor" ? all : hidden) * sizeof(float);

        const auto got = ledger_of(o);
        auto plain = o;
        plain.make_optimizer = [] { return make_optimizer("adamw", {}); };
        const auto adamw = ledger_of(plain);
        const auto more = [&](comm::Operation operation) {
          return got.of("world", operation).payload_bytes - adamw.of("world", operation).payload_bytes;
        };
        const auto what = name(optimizer, o.data) + "\n" + to_string(got);
        EXPECT_EQ(more(comm::Operation::all_reduce), sums) << what;
        EXPECT_EQ(more(comm::Operation::all_gather), directions) << what;
        EXPECT_EQ(more(comm::Operation::reduce_scatter), 0) << what;

        double sent = 0;
        for (const auto operation : {comm::Operation::all_reduce, comm::Operation::all_gather, comm::Operation::reduce_scatter})
          sent += static_cast<double>(got.of("world", operation).sent_bytes);
        EXPECT_NEAR(planned.steady_links.within, sent, 64.0 * ranks * map.layers()) << what;  // rounding of small sums
      }
}

// While a rank updates a layer, it holds its chunks of the layer, and the scratch that the page on optimizers gives.
TEST_F(ZeroLayers, ScratchIsTheFormula) {
  for (const std::string optimizer : kOptimizers)
    for (const std::uint32_t ranks : {1U, 2U, 4U}) {
      const auto o = options(optimizer, {.ranks = ranks, .zero = 3});
      const auto model = toy::make_model(o.sizes);
      const StepMap map(model, plan(model, toy::request_of(o), o.profile).map);
      std::uint64_t run = 0;
      for (std::uint32_t l = 0; l < map.layers(); ++l)
        run = std::max<std::uint64_t>(run, map.layout().chunks_of(l) * map.layout().chunk_elements() * sizeof(float));
      const auto scratch = map.chunks()[map.update_scratch()].bytes;
      if (optimizer == "lamb") {
        EXPECT_GE(scratch, run / ranks);
        EXPECT_LE(scratch, run / ranks + 2 * kPageBytes) << "sums are few";
      } else {
        EXPECT_GE(scratch, run) << "all directions, on every rank";
        EXPECT_LE(scratch, 4 * run);
      }
      if (ranks == 1) continue;
      for (const auto& action : plan(model, toy::request_of(o), o.profile).programs.steady.actions)
        if (action.op == Op::exchange) {
          EXPECT_EQ(map.uses(action).size(), 1U) << "the scratch alone";
        }
    }
}

// The layout of an optimizer's packed state depends on the ranks that share it.
TEST_F(ZeroLayers, OtherRanksGoOnWithPackedState) {
  for (const std::string optimizer : {"adafactor", "muon"}) {
    int runs = 0;
    const auto with = [&](const test::DataRanks& data) {
      auto o = options(optimizer, data);
      o.store = folder_ / (optimizer + std::to_string(runs++));
      o.steps = 4;
      return o;
    };
    const auto expected = toy::hash_of_ranks(with({}));
    for (const auto& [before, after] :
         {std::pair{test::DataRanks{.ranks = 2, .zero = 1}, test::DataRanks{.ranks = 4, .zero = 3}},
          {test::DataRanks{.ranks = 3, .zero = 3}, test::DataRanks{}}}) {
      auto first = with(before), second = with(after);
      first.commit_after = 2;
      toy::hash_of_ranks(first);
      second.resume = true;
      for (std::uint32_t r = 0; r < before.ranks; ++r)
        second.reshard_from.push_back(toy::of_rank(first, static_cast<int>(r)).store);
      EXPECT_EQ(expected, toy::hash_of_ranks(second)) << name(optimizer, before) << ", then " << name(optimizer, after);
    }
  }
}

}  // namespace
}  // namespace terrace
