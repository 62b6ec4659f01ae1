// What holds in whichever way context ranks share the positions of every sequence: by all-to-alls of heads (Ulysses), by a ring
// of keys and values, or by a ring of each. They train what one rank trains, alone and together with every other kind of
// parallelism.
#include <gtest/gtest.h>

#include <array>
#include <string>

#include <terrace/tests/parallel/sequence/shared_positions.h>

namespace terrace::test {
namespace {

class SharedPositions : public TensorRuns, public testing::WithParamInterface<Sharing> {
 protected:
  [[nodiscard]] static TensorRun of(lm::ModelConfig config, std::uint32_t ranks, std::int64_t window = 0) {
    return shared(GetParam(), std::move(config), ranks, window);
  }
};

TEST_P(SharedPositions, TrainsWhatOneRankTrains) {
  OneIn chosen(2);
  for (const auto& config : {gpt2(), llama()})
    for (const std::uint32_t ranks : {2U, 3U, 4U, 8U})
      if (auto o = of(config, ranks); chosen()) expect_serial_in_both(o);
}

TEST_P(SharedPositions, ComposesWithDataTensorAndPipelineParallelismInEveryStageOnDisk) {
  OneIn chosen(4);
  for (const auto& config : {gpt2(), llama()})
    for (std::uint32_t zero = 0; zero <= 3; ++zero)
      for (const auto& [data, tensor, schedule] :
           {std::tuple{2U, 1U, ""}, {1U, 2U, ""}, {1U, 1U, "1f1b"}, {2U, 1U, "zb-h1"}, {1U, 2U, "1f1b"}}) {
        if (!chosen()) continue;
        auto o = of(config, 2, GetParam() == Sharing::ring && zero == 1 ? 7 : 0);
        o.data = {.ranks = data, .zero = zero};
        o.tensor_ranks = tensor;
        o.sequence = tensor > 1 && zero % 2 == 1;
        o.schedule = schedule;
        o.squeezed = o.disk_tier = (zero + data) % 2 == 0;
        o.recompute = zero == 3;
        expect_serial(o, kFp64);
      }
}

TEST_P(SharedPositions, BudgetsOrdersAndRepeatsChangeNoBit) {
  for (const bool of_llama : {false, true}) {
    auto o = of(of_llama ? llama() : gpt2(), 4);
    if (of_llama && GetParam() == Sharing::ring) o.config.place.ring = 2;  // heads within the places of a ring
    o.micro_batches = 3;
    o.data.zero = 3;
    expect_no_bit_changes_in_little_memory(o);
  }
}

std::string in_words(const testing::TestParamInfo<Sharing>& way) {
  constexpr std::array kWords{"Heads", "Ring", "TwoRings"};
  return kWords[static_cast<std::size_t>(way.param)];
}
INSTANTIATE_TEST_SUITE_P(By, SharedPositions, testing::Values(Sharing::heads, Sharing::ring, Sharing::two_rings), in_words);

}  // namespace
}  // namespace terrace::test
