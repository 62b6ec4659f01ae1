// A cluster is a file: the shipped files are right, errors in a file are named, and a rank gets its share of its node.
#include <terrace/examples/terrace/plan/cluster.h>
#include <terrace/examples/terrace/plan/shipped_clusters.h>

#include <fstream>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/models/model.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/parallel/layers/chain.h>
#include <terrace/parallel/plan/plan.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::cli {
namespace {

using testing::HasSubstr;

std::filesystem::path shipped(const std::string& name) {
  return std::filesystem::path(TERRACE_SOURCE_FOLDER) / "examples/clusters" / name;
}

std::string text_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string refusal(const std::string& text) {
  const auto what = test::refusal_of([&] { static_cast<void>(parse_cluster(text, "mine.toml")); });
  EXPECT_THAT(what, HasSubstr("cluster profile mine.toml"));
  EXPECT_THAT(what, HasSubstr("\n  ")) << "how to mend it";
  return what;
}

// The text of the shipped profile with one part replaced.
std::string changed(const std::string& from, const std::string& to) {
  auto text = text_of(shipped("dgx2.toml"));
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Cluster, EveryShippedProfileIsRight) {
  std::size_t files = 0;
  for (const auto& file : std::filesystem::directory_iterator(shipped(""))) {
    const auto cluster = load_cluster(file.path());
    EXPECT_GE(cluster.on_cpu() ? cluster.cpu.cores : cluster.node.gpus, 1) << file.path();
    const auto in_program = load_cluster(file.path().stem());
    EXPECT_EQ(cluster.gpu.memory, in_program.gpu.memory) << file.path();
    EXPECT_EQ(cluster.node.memory, in_program.node.memory) << file.path();
    ++files;
  }
  EXPECT_EQ(files, shipped_clusters().size());
}

TEST(Cluster, ARankGetsItsShareOfTheNodeAndNoMoreThanItsOwnLink) {
  const auto cluster = load_cluster(shipped("dgx2.toml"));
  const auto all = rank_profile(cluster, {4, 0});
  EXPECT_DOUBLE_EQ(all.upload, 3.0e9);
  EXPECT_DOUBLE_EQ(all.disk_read, 1.6e9);
  EXPECT_DOUBLE_EQ(all.matmul_bf16, 7e13);
  EXPECT_EQ(all.links.ranks_per_node, 16U);
  EXPECT_TRUE(all.separate_device());
  const auto two = rank_profile(cluster, {4, 2});
  EXPECT_DOUBLE_EQ(two.upload, 1.2e10) << "its own link, not half the node's";
  EXPECT_DOUBLE_EQ(two.disk_read, 1.28e10);
}

TEST(Cluster, TheRunIsOneRankAGpuWithTheClustersMemory) {
  const auto cluster = load_cluster(shipped("dgx2.toml"));
  const auto c = on_cluster({}, cluster, {64, 0});
  EXPECT_EQ(c.parallel.dp, 1024);
  EXPECT_EQ(c.found.local_ranks, 16);
  EXPECT_EQ(std::stoull(c.memory.device_memory), (32ULL << 30) / 100 * 95);
  RunConfig given;
  given.memory.device_memory = "8GiB";
  EXPECT_EQ(on_cluster(given, cluster, {1, 2}).memory.device_memory, "8GiB");
  given.parallel.dp = 3;
  EXPECT_THROW(static_cast<void>(on_cluster(given, cluster, {1, 2})), Error);
  EXPECT_THROW(static_cast<void>(on_cluster({}, cluster, {1, 17})), Error);
  EXPECT_THROW(static_cast<void>(on_cluster({}, cluster, {0, 1})), Error);
}

// A node without GPUs is one rank, whose device tier and host tier share the memory, as in a run.
TEST(Cluster, ANodeWithoutGpusComputesOnItsCpu) {
  const auto cluster = load_cluster(shipped("cpu-64gb.toml"));
  ASSERT_TRUE(cluster.on_cpu());
  const auto profile = rank_profile(cluster, {2, 0});
  EXPECT_FALSE(profile.separate_device());
  EXPECT_DOUBLE_EQ(profile.matmul_fp32, cluster.cpu.matmul_fp32_flop_s);
  EXPECT_DOUBLE_EQ(profile.memory_copy, cluster.node.memory_bytes_s / 2) << "a copy reads and writes";
  EXPECT_DOUBLE_EQ(profile.disk_read, cluster.node.nvme_read_bytes_s);
  EXPECT_DOUBLE_EQ(profile.compute_beside_copy, 8.0 / 9) << "nine threads on eight cores";
  const auto c = on_cluster({}, cluster, {2, 0});
  EXPECT_EQ(c.parallel.dp, 2);
  EXPECT_EQ(c.found.local_ranks, 1);
  EXPECT_FALSE(c.on_gpu());
  EXPECT_EQ(std::stoull(c.memory.device_memory), 64'000'000'000ULL / 2 / 100 * 95);
  EXPECT_EQ(std::stoull(c.memory.host_memory), 64'000'000'000ULL / 2 / 100 * 85);
  EXPECT_THROW(static_cast<void>(on_cluster({}, cluster, {1, 1})), Error) << "GPUs of a node without them";
  RunConfig on_gpu;
  on_gpu.memory.device = "cuda:0";
  EXPECT_THROW(static_cast<void>(on_cluster(on_gpu, cluster, {1, 0})), Error);
  RunConfig on_cpu;
  on_cpu.memory.device = "cpu";
  EXPECT_THROW(static_cast<void>(on_cluster(on_cpu, load_cluster(shipped("dgx2.toml")), {1, 1})), Error);
}

TEST(Cluster, AProfileHasOneKindOfNodes) {
  const auto cpu = text_of(shipped("cpu-64gb.toml"));
  EXPECT_THAT(refusal(text_of(shipped("dgx2.toml")) + "[cpu]\ncores = 8\n"), HasSubstr("both [gpu] and [cpu]"));
  auto without_cores = cpu;
  EXPECT_THAT(refusal(without_cores.replace(cpu.find("cores = 8"), 9, "")), HasSubstr("cpu.cores is missing"));
  auto with_gpus = cpu;
  EXPECT_THAT(refusal(with_gpus.replace(cpu.find("[node]"), 6, "[node]\ngpus = 1")), HasSubstr("unknown key node.gpus"));
  EXPECT_THAT(refusal(changed("[gpu]", "[gpus]")), HasSubstr("did you mean gpu?"));
}

TEST(Cluster, WhatIsWrongIsNamedWithItsPlace) {
  EXPECT_THAT(refusal(changed("gpus = 16", "gpu = 16")), HasSubstr("unknown key node.gpu; did you mean gpus?"));
  EXPECT_THAT(refusal(changed("gpus = 16", "")), HasSubstr("node.gpus is missing"));
  EXPECT_THAT(refusal(changed("gpus = 16", "gpus = 0")), HasSubstr("node.gpus is not a whole number"));
  EXPECT_THAT(refusal(changed("gpus = 16", "gpus = 1.5")), HasSubstr("node.gpus is not a whole number"));
  EXPECT_THAT(refusal(changed("\"32GiB\"", "32")), HasSubstr("gpu.memory is not a size in quotes"));
  EXPECT_THAT(refusal(changed("\"32GiB\"", "\"much\"")), HasSubstr("gpu.memory is not a size in quotes"));
  EXPECT_THAT(refusal(changed("1.2e10", "-1")), HasSubstr("gpu.upload-bytes-s is not a rate"));
  EXPECT_THAT(refusal(changed("1.2e10", "0")), HasSubstr("gpu.upload-bytes-s is not a rate"));
  EXPECT_THAT(refusal(changed("1.2e10", "nan")), HasSubstr("gpu.upload-bytes-s is not a rate"));
  EXPECT_THAT(refusal(changed("1.2e10", "\"fast\"")), HasSubstr("gpu.upload-bytes-s is not a rate"));
  EXPECT_THAT(refusal(changed("nvme-latency-s = 1e-4", "nvme-latency-s = -1")), HasSubstr("node.nvme-latency-s is not"));
  EXPECT_THAT(refusal(changed("[links]", "[link]")), HasSubstr("there is no section [link]; did you mean links?"));
  EXPECT_THAT(refusal(changed("[links]\n", "[links]\nsums = \"direct\"\n")),
              HasSubstr("links.sums is not a property of the links"));
  EXPECT_THAT(refusal(changed("gpus = 16", "gpus == 16")), HasSubstr("line "));
  EXPECT_THAT(refusal("links = 3"), HasSubstr("there is no section"));
  EXPECT_THROW(static_cast<void>(load_cluster("there/is/none.toml")), Error);
  EXPECT_THROW(static_cast<void>(load_cluster(shipped(""))), Error);
}

// A resident block's products take the time of their rate, and what rounding reads and writes comes on top: a bf16 number is
// read twice, a code is written once, and of a gradient twice, for dx and dW.
TEST(Cluster, ProductsOf8BitsMakeAPlanFasterByTheirShare) {
  const auto profile = rank_profile(load_cluster("gpu-80gb"), {1, 0});
  constexpr std::int64_t kHidden = 4096, kKv = 1024, kFfn = 14336, kRows = 4096, kBlocks = 4, kMicroBatches = 2;
  const auto planned = [&](layers::Products products) {
    lm::ModelConfig config{.family = lm::family_named("llama"),
                           .layers = kBlocks,
                           .hidden = kHidden,
                           .heads = 32,
                           .kv_heads = 8,
                           .ffn = kFfn,
                           .seq_len = kRows,
                           .vocab = 32000,
                           .dtype = DType::bf16,
                           .products = products};
    const auto model = layers::make_transformer(lm::transformer_of(lm::complete(config)));
    const auto optimizer = make_optimizer("adamw", {});
    return plan(model,
                {.shape = {{1, kRows}, kMicroBatches},
                 .budget = {kUnlimited, kUnlimited, 0},
                 .recipe = "split",
                 .states = optimizer->states(),
                 .order = Order::horizontal,
                 .recompute = 0,
                 .update = Tier::device},
                profile);
  };
  const auto bf16 = planned(layers::Products::dtype), fp8 = planned(layers::Products::fp8);
  ASSERT_TRUE(bf16.fits && fp8.fits) << bf16.refusal.why << fp8.refusal.why;
  double multiplied = 0, rounded = 0;
  for (const auto& [out, in] :
       {std::pair{kHidden + 2 * kKv, kHidden}, {kHidden, kHidden}, {2 * kFfn, kHidden}, {kHidden, kFfn}}) {
    multiplied += 3 * 2.0 * kRows * static_cast<double>(out * in);
    rounded += 2 * 5.0 * static_cast<double>(out * in + kRows * in) + 6.0 * static_cast<double>(kRows * out);
  }
  const double saved = multiplied / profile.matmul_bf16 * (1 - 1 / 1.92), added = rounded / profile.device_stream;
  const double want = kBlocks * kMicroBatches * (saved - added);
  fmt::print("bf16 {:.4f} s, fp8 {:.4f} s; of a block and micro-batch, products save {:.2f} ms and rounding takes {:.2f} ms\n",
             bf16.floor_s, fp8.floor_s, 1e3 * saved, 1e3 * added);
  EXPECT_NEAR(bf16.floor_s - fp8.floor_s, want, 1e-3 * want) << "carried tensors are whole pages";
  EXPECT_NEAR(bf16.times.seconds - fp8.times.seconds, want, 1e-2 * want);
}

}  // namespace
}  // namespace terrace::cli
