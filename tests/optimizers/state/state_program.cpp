// A training of optimizer_state_test.cpp whose gradients depend on step and element alone. It commits after every step and says
// so; at its end it writes the weights into a file.
//
//   optimizer_state_program STORE STEPS WEIGHTS
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <terrace/optimizers/state/optimizer_state.h>

int main(int, char** argv) try {
  using namespace terrace;
  OptimizerState state({.tiers = {.host_bytes = 400 * kKiB, .nvme_bytes = 16 * kMiB, .store = argv[1], .threads = 1},
                        .optimizer = "adamw",
                        .settings = {},
                        .recipe = "8bit",
                        .chunk_elements = 8192,
                        .seed = 1});
  std::vector<std::vector<bf16>> weights;
  std::vector<std::vector<float>> gradients;
  for (const std::size_t size : {50'000, 77, 30'001}) {
    weights.emplace_back(size, bf16(0.5F));
    gradients.emplace_back(size);
  }
  for (std::size_t t = 0; t < weights.size(); ++t)
    state.add(fmt::format("tensor.{}", t), std::span(weights[t]), std::span(gradients[t]));
  const auto steps = std::stoull(argv[2]);
  for (auto n = state.committed_step() + 1; n <= steps; ++n) {
    for (std::size_t t = 0; t < gradients.size(); ++t)
      for (std::size_t i = 0; i < gradients[t].size(); ++i)
        gradients[t][i] = static_cast<float>((i * 31 + n * 17 + t) % 101) * 0.01F - 0.5F;
    state.step({.rate = 0.01, .clip = 1});
    state.commit(n, std::to_string(n));
    if (state.payload() != std::to_string(n) || state.updates() != n) return 4;
    std::printf("%llu\n", static_cast<unsigned long long>(n));
    std::fflush(stdout);
  }
  std::ofstream file(argv[3], std::ios::binary);
  for (const auto& w : weights) file.write(reinterpret_cast<const char*>(w.data()), static_cast<std::streamsize>(2 * w.size()));
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 3;
}
