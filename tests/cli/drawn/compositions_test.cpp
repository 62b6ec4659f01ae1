// Products of all axes, as MPI processes: each trains the same as one rank, with ZeRO-1 and ZeRO-3 and its optimizer states on
// disk; held-out loss and generated text depend on every weight. The model is the quickstart's, with twelve heads, so that four
// ranks can share them; continuous integration uses a small one of its family.
//
// A composition is a line of compositions().
#include <array>
#include <regex>

#include <fmt/format.h>

#include <terrace/tests/support/one_in.h>

#include <terrace/tests/cli/ranks/on_ranks.h>

namespace terrace::test {
namespace {

#ifdef TERRACE_MPIRUN

enum Models : std::uint8_t { kLlama, kExperts, kNorms };  // kNorms: norms that sum over tensor ranks

struct Composition {
  const char* name;
  int ranks;
  Words words;
  int data_ranks = 1;  // ranks that share the micro-batches
  Models model = kLlama;
};

std::vector<Composition> compositions() {
  return {
      {"dp2_pp2_tp2", 8, {"--dp", "2", "--pp", "2", "--tp", "2"}, 2},
      {"dp2_tp4", 8, {"--dp", "2", "--tp", "4", "--sp"}, 2},
      {"dp2_tp4_pieces", 8, {"--dp", "2", "--tp", "4", "--sp", "--tp-overlap", "3"}, 2},
      {"dp2_tp4_norms", 8, {"--dp", "2", "--tp", "4"}, 2, kNorms},
      {"pp2_tp4_norms", 8, {"--pp", "2", "--tp", "4", "--sp"}, 1, kNorms},
      {"pp4_tp2", 8, {"--pp", "4", "--tp", "2", "--sp"}},
      {"tp4_2d", 4, {"--tp", "4", "--tp-mode", "2d"}},
      {"tp8_2_5d", 8, {"--tp", "8", "--tp-mode", "2.5d", "--tp-depth", "2"}},
      {"tp8_3d", 8, {"--tp", "8", "--tp-mode", "3d"}},
      {"cp4_dp2", 8, {"--cp", "4", "--dp", "2"}, 2},
      {"cp4_ring_dp2", 8, {"--cp", "4", "--cp-mode", "ring", "--dp", "2"}, 2},
      {"ep4_dp2", 8, {"--ep", "4", "--dp", "2"}, 8, kExperts},
      {"ep2_pp2_tp2", 8, {"--ep", "2", "--pp", "2", "--tp", "2"}, 2, kExperts},
  };
}

// A run of one rank for all compositions with the same layers: 16 sequences per step. The size of the vocabulary is not
// divisible by any number of ranks.
struct Serial {
  std::string run, text = {};
  int micro_batches;  // of all data ranks together
  Words words;
};

Serial serial(Models kind) {
  const auto model = long_form() ? Words{"--layers", "6", "--hidden", "384", "--heads", "12", "--seq-len", "256"}
                                 : Words{"--layers", "2", "--hidden", "128", "--heads", "4", "--ffn", "256", "--seq-len", "32"};
  const auto common = model + Words{"--data-format", "bytes",
                                    "--vocab",       "263",
                                    "--lr",          "1e-3",
                                    "--steps",       "3",
                                    "--dtype",       "fp64",
                                    "--recipe",      "fp32",
                                    "--model",       kind == kNorms ? "olmo2" : "llama"};
  if (kind != kExperts)
    return {.run = kind == kNorms ? "one-norms" : "one", .micro_batches = 4, .words = common + Words{"--batch-size", "4"}};
  return {.run = "one-experts",
          .micro_batches = 8,
          .words = common + Words{"--batch-size", "2", "--experts", "4", "--experts-per-token", "2"}};
}

class Compositions : public Ranks {
 protected:
  // A host budget that does not hold all states of a rank: half of what they need, or what the refusal suggests.
  [[nodiscard]] Words little(const Composition& c, const Words& words) const {
    const auto planned = [&](const std::string& device, const std::string& host) {
      return terrace(
          tiny("plan", words + Words{"--json", "--nvme-path", "none", "--device-memory", device, "--host-memory", host}));
    };
    const auto wide = planned("unlimited", "unlimited");
    EXPECT_EQ(0, wide.exit) << wide.described;
    if (wide.exit != 0) return {};
    const auto needs = needs_of(nlohmann::json::parse(wide.out));
    const auto device = std::to_string(2 * needs.least_device);
    auto host = std::to_string(Needs::between(needs.least_host, needs.state, 0.5) * static_cast<std::uint64_t>(c.ranks));
    const auto tight = planned(device, host);
    std::smatch enough;
    if (std::regex_search(tight.err, enough, std::regex("--host-memory ([0-9]+MiB) would fit"))) host = enough[1].str();
    return {"--nvme-path", "disk", "--device-memory", device, "--host-memory", host};
  }
};

TEST_F(Compositions, TrainWhatOneRankTrainsAsProcessesWithStatesOnDisk) {
  const auto with = [&](const Serial& of, int data_ranks, const Words& more) {
    return of.words + Words{"--grad-accumulation", std::to_string(of.micro_batches / data_ranks)} + more;
  };
  std::array ones{serial(kLlama), serial(kExperts), serial(kNorms)};
  for (auto& one : ones) {
    const auto trained = train(with(one, 1, {"--out-dir", one.run}));
    ASSERT_EQ(0, trained.exit) << trained.described;
    one.text = text_of(one.run);
  }
  OneIn chosen(3);
  for (const auto& c : compositions())
    for (const auto* const zero : {"1", "3"}) {
      if (!chosen()) continue;
      const auto& one = ones.at(c.model);
      const auto run = fmt::format("{}-zero{}", c.name, zero);
      SCOPED_TRACE(run);
      const auto words = with(one, c.data_ranks, c.words + Words{"--zero", zero});
      const auto many = terrace::test::run(apart(c.ranks, tiny("train", words + little(c, words) + Words{"--out-dir", run})));
      ASSERT_EQ(0, many.exit) << many.described;
      expect_near(one.run, run, 1e-9);
      EXPECT_EQ(one.text, text_of(run));
      EXPECT_GT(metrics(run).back().at("offload").at("read_bytes").get<std::uint64_t>(), 0U) << "states were not on disk";
    }
}

#endif

}  // namespace
}  // namespace terrace::test
