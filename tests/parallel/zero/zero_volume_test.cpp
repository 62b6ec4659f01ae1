// Data parallelism sends and holds exactly the bytes of its formulas; the program shows what overlaps.
#include <gtest/gtest.h>

#include <terrace/tests/doubles/ledger.h>

#include <terrace/tests/parallel/zero/data_parallel_run.h>

namespace terrace {
namespace {

class ZeroVolume : public test::FolderTest {
 protected:
  toy::LastStep measure(toy::RunOptions o, int rank) {
    o.store = folder_;
    return toy::last_step(std::move(o), rank);
  }
};

// Elements of the layers' runs, padding included.
struct Elements {
  std::uint64_t all = 0, last = 0, tied = 0;
  std::uint64_t groups = 0, last_groups = 0, tied_groups = 0;
  explicit Elements(const StepMap& map) {
    const auto group_elements = map.layout().chunk_elements() * map.data().group();
    for (std::uint32_t l = 0; l < map.layers(); ++l) {
      groups += map.layout().groups_of(l);
      last_groups = map.layout().groups_of(l);
      tied_groups += map.reduced_groups(l) - map.layout().groups_of(l);
    }
    all = groups * group_elements;
    last = last_groups * group_elements;
    tied = tied_groups * group_elements;
  }
};

StepMap map_of(const Model& model, const toy::RunOptions& o) { return {model, plan(model, toy::request_of(o), o.profile).map}; }

TEST_F(ZeroVolume, TheLedgerIsTheFormula) {
  for (const std::uint32_t ranks : {2U, 3U, 8U})
    for (const std::uint32_t zero : {0U, 1U, 2U, 3U})
      for (const std::uint32_t micro_batches : {1U, 3U}) {
        toy::RunOptions o;
        o.sizes.tied = zero != 3;  // a tied layer gathers another's weights too
        o.sizes.dtype = DType::bf16;
        o.shape = {{1, 8}, micro_batches};
        o.order = Order::vertical;
        o.data = {.ranks = ranks, .zero = zero};
        const auto model = toy::make_model(o.sizes);
        const Elements n(map_of(model, o));
        const auto measured = measure(o, static_cast<int>(ranks) - 1).sent;
        const auto what = std::to_string(ranks) + " ranks, ZeRO-" + std::to_string(zero) + ", " +
                          std::to_string(micro_batches) + " micro-batches\n" + to_string(measured);
        constexpr std::uint64_t kWeight = 2, kGradient = 4;
        const auto of = [&](comm::Operation operation) { return measured.of("world", operation); };

        const auto reductions = zero >= 2 ? micro_batches : 1;
        const auto gradients = reductions * (n.all + n.tied) * kGradient;
        const auto reduced = of(zero == 0 ? comm::Operation::all_reduce : comm::Operation::reduce_scatter);
        const auto losses = std::uint64_t{micro_batches} * ranks * sizeof(double);
        EXPECT_EQ(reduced.payload_bytes, gradients + (zero == 0 ? losses : 0)) << what;
        EXPECT_EQ(reduced.calls, reductions * (n.groups + n.tied_groups) + (zero == 0 ? 1 : 0)) << what;

        // The plan knows these bytes in advance.
        const auto planned = plan(model, toy::request_of(o), o.profile);
        EXPECT_EQ(planned.steady_links.between, 0);
        const auto sent = reduced.sent_bytes + of(comm::Operation::all_gather).sent_bytes +
                          (zero == 0 ? 0 : of(comm::Operation::all_reduce).sent_bytes);
        EXPECT_NEAR(planned.steady_links.within, static_cast<double>(sent), 64.0 * ranks) << what;  // rounding of small sums

        const auto gathered = of(comm::Operation::all_gather);
        const auto weights = zero == 0 ? 0 : zero == 3 ? 2 * n.all - n.last : n.all;
        EXPECT_EQ(gathered.payload_bytes, weights * kWeight) << what;
        EXPECT_EQ(gathered.calls, zero == 0 ? 0 : zero == 3 ? 2 * n.groups - n.last_groups : n.groups) << what;
        EXPECT_EQ(gathered.sent_bytes, weights * kWeight / ranks * (ranks - 1)) << what;
        if (zero > 0) {
          EXPECT_EQ(reduced.sent_bytes, gradients / ranks * (ranks - 1)) << what;
          EXPECT_EQ(of(comm::Operation::all_reduce).calls, 2U) << what;  // one of losses, one of the norm's blocks of squares
        }
      }
}

// Sends 260 bytes for 256 numbers, and holds no more than before.
TEST_F(ZeroVolume, BlocksOfEightBitsAreTheBytesThatTheyAre) {
  toy::RunOptions o;
  o.sizes.dtype = DType::bf16;
  o.shape = {{1, 8}, 3};
  o.data = {.ranks = 4, .zero = 3};
  const auto wide = measure(o, 1);
  const auto planned_wide = plan(toy::make_model(o.sizes), toy::request_of(o), o.profile).steady_links.within;
  o.data.gradients = o.data.weights = Travel::int8;
  const auto narrow = measure(o, 1);
  const auto of = [](const toy::LastStep& m, comm::Operation operation) { return m.sent.of("world", operation); };
  const auto reduced = of(wide, comm::Operation::reduce_scatter), gathered = of(wide, comm::Operation::all_gather);
  EXPECT_EQ(of(narrow, comm::Operation::reduce_scatter).payload_bytes, reduced.payload_bytes / (4 * 256) * 260);
  EXPECT_EQ(of(narrow, comm::Operation::all_gather).payload_bytes, gathered.payload_bytes / (2 * 256) * 260);
  EXPECT_EQ(of(narrow, comm::Operation::reduce_scatter).calls, reduced.calls);
  EXPECT_EQ(of(narrow, comm::Operation::all_gather).calls, gathered.calls);
  EXPECT_EQ(narrow.between[Tier::device], wide.between[Tier::device]) << "it takes no memory of its own";
  const auto planned = plan(toy::make_model(o.sizes), toy::request_of(o), o.profile).steady_links.within;
  const auto saved = reduced.sent_bytes - of(narrow, comm::Operation::reduce_scatter).sent_bytes + gathered.sent_bytes -
                     of(narrow, comm::Operation::all_gather).sent_bytes;
  EXPECT_DOUBLE_EQ(planned_wide - planned, static_cast<double>(saved));
}

TEST_F(ZeroVolume, NarrowGradientsAreHalfTheBytes) {
  for (const std::uint32_t zero : {2U, 3U}) {
    toy::RunOptions o;
    o.sizes.dtype = DType::bf16;
    o.shape = {{1, 8}, 3};
    o.data = {.ranks = 4, .zero = zero};
    const auto wide = measure(o, 1);
    o.data.gradients = Travel::bf16;
    const auto narrow = measure(o, 1);
    const auto of = [](const toy::LastStep& m, comm::Operation operation) { return m.sent.of("world", operation); };
    EXPECT_GT(of(wide, comm::Operation::reduce_scatter).payload_bytes, 0U);
    EXPECT_EQ(2 * of(narrow, comm::Operation::reduce_scatter).payload_bytes,
              of(wide, comm::Operation::reduce_scatter).payload_bytes);
    EXPECT_EQ(of(narrow, comm::Operation::all_gather).payload_bytes, of(wide, comm::Operation::all_gather).payload_bytes);
    EXPECT_EQ(narrow.between[Tier::device], wide.between[Tier::device]) << "it takes no memory of its own";
    const auto model = toy::make_model(o.sizes);
    const auto planned = plan(model, toy::request_of(o), o.profile).steady_links.within;
    o.data.gradients = Travel::whole;
    const auto saved = plan(model, toy::request_of(o), o.profile).steady_links.within - planned;
    EXPECT_DOUBLE_EQ(saved, static_cast<double>(of(narrow, comm::Operation::reduce_scatter).sent_bytes));
  }
}

// ZeRO in groups of f, an all-reduce of the shards between the d / f copies once a step.
TEST_F(ZeroVolume, HybridShardsSendAndHoldWhatTheFormulaSays) {
  for (const auto& [ranks, f] : {std::pair{4U, 2U}, {8U, 2U}, {6U, 3U}})
    for (const std::uint32_t zero : {1U, 2U, 3U}) {
      toy::RunOptions o;
      o.sizes.tied = zero != 3;  // a tied layer gathers another's weights too
      o.sizes.dtype = DType::bf16;
      o.shape = {{1, 8}, 3};
      o.order = Order::vertical;
      o.data = {.ranks = ranks, .zero = zero, .shard_group = f};
      const auto model = toy::make_model(o.sizes);
      const auto map = map_of(model, o);
      const Elements n(map);
      const auto measured = measure(o, static_cast<int>(ranks) - 1);
      const auto what = std::to_string(ranks) + " ranks in groups of " + std::to_string(f) + ", ZeRO-" + std::to_string(zero) +
                        "\n" + to_string(measured.sent);
      constexpr std::uint64_t kWeight = 2, kGradient = 4, kStates = 12;
      const auto rounds = zero >= 2 ? 3U : 1U;
      const auto scattered = measured.sent.of("shard", comm::Operation::reduce_scatter);
      EXPECT_EQ(scattered.payload_bytes, rounds * (n.all + n.tied) * kGradient) << what;
      const auto reduced = measured.sent.of("copy", comm::Operation::all_reduce);
      EXPECT_EQ(reduced.payload_bytes, (n.all + n.tied) * kGradient / f) << what;
      EXPECT_EQ(reduced.calls, n.groups + n.tied_groups) << what;
      const auto gathered = measured.sent.of("shard", comm::Operation::all_gather);
      EXPECT_EQ(gathered.payload_bytes, (zero == 3 ? 2 * n.all - n.last : n.all) * kWeight) << what;
      EXPECT_EQ(measured.sent.of("world", comm::Operation::all_reduce).payload_bytes, 3 * ranks * sizeof(double)) << "losses\n"
                                                                                                                  << what;

      EXPECT_EQ(measured.between[Tier::device], (zero == 3 ? n.all * kWeight / f : n.all * kWeight) + n.all * kStates / f)
          << what;
    }
}

TEST_F(ZeroVolume, MemoryOfARankIsTheFormula) {
  for (const std::uint32_t ranks : {1U, 2U, 4U, 8U})
    for (const std::uint32_t zero : {0U, 1U, 2U, 3U}) {
      toy::RunOptions o;
      o.sizes.dtype = DType::bf16;
      o.shape = {{1, 8}, 1};
      o.data = {.ranks = ranks, .zero = zero};
      const auto model = toy::make_model(o.sizes);
      const auto map = map_of(model, o);
      const Elements n(map);
      // A gradient is freed when it has been applied: between steps there are weights, masters and moments.
      const std::uint64_t w = 2, states = 12;
      const auto share = [&](std::uint64_t bytes, bool sharded) { return bytes * n.all / (sharded ? ranks : 1); };
      const auto held = share(w, zero >= 3) + share(states, zero >= 1);
      const auto gradients = share(4, zero >= 2) + 4 * n.tied / (zero >= 2 ? ranks : 1);
      const auto what = std::to_string(ranks) + " ranks, ZeRO-" + std::to_string(zero);
      EXPECT_EQ(map.chunks().state_bytes(), held + gradients) << what;
      for (const int rank : {0, static_cast<int>(ranks) - 1}) EXPECT_EQ(measure(o, rank).between[Tier::device], held) << what;
      // The padding of a layer is less than a group and the alignment of three tensors.
      EXPECT_LT(n.all - map.layout().tensor_elements(),
                map.layers() * (map.layout().chunk_elements() * map.data().group() + 3 * memory::Layout::kAlignElements))
          << what;
    }
}

// Apart from prefetches, all ranks have the same program: the collective that one rank comes to is also the next one of all
// others.
TEST_F(ZeroVolume, AllRanksHaveOneProgram) {
  for (const std::uint32_t zero : {0U, 1U, 2U, 3U}) {
    toy::RunOptions o;
    o.shape = {{1, 8}, 2};
    o.data = {.ranks = 4, .zero = zero};
    const auto model = toy::make_model(o.sizes);
    auto request = toy::request_of(o);
    const auto first = plan(model, request, o.profile);
    const auto computed = [](Program p) {
      std::erase_if(p.actions, [](const Action& a) { return a.op == Op::prefetch; });
      return to_text(p);
    };
    for (const std::uint32_t rank : {1U, 3U}) {
      request.rank = rank;
      const auto other = for_rank(first, model, request, o.profile);
      EXPECT_EQ(other.capacity.device, first.capacity.device);
      for (const auto program :
           {&planning::Programs::first, &planning::Programs::steady, &planning::Programs::drain, &planning::Programs::evaluate,
            &planning::Programs::fill, &planning::Programs::visit, &planning::Programs::gather})
        EXPECT_EQ(computed(other.programs.*program), computed(first.programs.*program)) << "ZeRO-" << zero << ", rank " << rank;
    }
  }
}

TEST_F(ZeroVolume, ReductionsStandBesideTheBackwardOfTheNextLayer) {
  toy::RunOptions o;
  o.shape = {{1, 8}, 2};
  o.data = {.ranks = 4};
  const auto model = toy::make_model(o.sizes);
  const auto p = plan(model, toy::request_of(o), o.profile);
  std::uint32_t layer_reduced = model.layers.size();
  bool pending = false, overlapped = false;
  std::size_t reductions = 0;
  for (const auto& a : p.programs.first.actions) {
    if (a.op == Op::reduce) {
      EXPECT_EQ(a.micro_batch, 1U) << "only the last micro-batch's gradient is sent";
      layer_reduced = a.layer;
      pending = true;
      ++reductions;
    }
    if (a.op == Op::norm && a.layer == layer_reduced) pending = false;
    if (a.op == Op::backward && pending) overlapped = true;
    if (a.op == Op::backward && a.layer == 0 && a.micro_batch == 1) {
      EXPECT_GT(reductions, 0U) << "the first reduction is issued before the last backward";
    }
  }
  EXPECT_TRUE(overlapped);
}

}  // namespace
}  // namespace terrace
