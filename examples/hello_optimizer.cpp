// AdamW for tensors of your own, with its states on a disk: it learns two vectors, commits, and a second run of the program
// continues where the last commit was.
//
//   hello_optimizer [FOLDER]
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>
#include <terrace/optimizers/state/optimizer_state.h>

using namespace terrace;

namespace {

struct Tensor {
  explicit Tensor(std::size_t size) : weight(size), gradient(size) {}
  std::vector<float> weight, gradient;
};

// The gradient of half the squared distance to a target; returns the mean of that distance.
double compute_gradients(std::vector<Tensor>& tensors) {
  double loss = 0, count = 0;
  for (auto& t : tensors)
    for (std::size_t i = 0; i < t.weight.size(); ++i, ++count) {
      t.gradient[i] = t.weight[i] - 0.001F * static_cast<float>(i % 1000);
      loss += 0.5 * t.gradient[i] * t.gradient[i];
    }
  return loss / count;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string folder = argc > 1 ? argv[1] : "scratch";
  std::vector<Tensor> tensors{Tensor(3'000'000), Tensor(1'000)};
  OptimizerState adamw({.tiers = {.host_bytes = 16 * kMiB, .nvme_bytes = 128 * kMiB, .store = folder + "/optimizer"}});
  for (std::size_t t = 0; t < tensors.size(); ++t)
    adamw.add("tensor." + std::to_string(t), std::span(tensors[t].weight), std::span(tensors[t].gradient));
  const auto first = adamw.committed_step();
  for (auto n = first + 1; n <= first + 20; ++n) {
    const double loss = compute_gradients(tensors);
    adamw.step({.rate = 0.02, .clip = 100});
    if (n % 10 == 0) adamw.commit(n);
    if (n % 10 == 1) std::printf("step %llu: loss %.5f\n", static_cast<unsigned long long>(n), loss);
  }
  const auto peak = adamw.peak_bytes();
  std::printf("%s of states in memory, %s on the disk\n", format_bytes(peak[Tier::host]).c_str(),
              format_bytes(peak[Tier::disk]).c_str());
} catch (const Error& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
