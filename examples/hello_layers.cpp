// A trainer in plain C++: layers and AdamW written by hand, for a network whose memory is a quarter of what it needs. Weights,
// gradients and moments of the hidden layers are chunks under leases, activations are offloaded by the forward and fetched by
// the backward, and the head, which stays in memory, has an OptimizerState. The losses are those of a run in memory, bit for
// bit.
//
//   hello_layers [FOLDER]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>
#include <terrace/offload/manager/activations.h>
#include <terrace/offload/manager/chunk_manager.h>
#include <terrace/optimizers/state/optimizer_state.h>

using namespace terrace;

namespace {

constexpr int kLayers = 12, kWidth = 128, kBatch = 16, kSteps = 30;
constexpr std::uint64_t kWeightBytes = kWidth * kWidth * sizeof(float);
constexpr std::uint64_t kModelBytes = kLayers * 4 * kWeightBytes;  // weights, gradients, two moments
using Batch = std::vector<float>;                                  // kBatch rows of kWidth numbers

std::span<float> floats(const Lease& lease, std::size_t i = 0) {
  return {reinterpret_cast<float*>(lease.bytes(i).data()), kWidth * kWidth};
}

// y += x · w, and its two derivatives: dx += dy · wᵀ, dw += xᵀ · dy.
void multiply(Batch& y, const Batch& x, std::span<const float> w) {
  for (int b = 0; b < kBatch; ++b)
    for (int i = 0; i < kWidth; ++i)
      for (int j = 0; j < kWidth; ++j) y[b * kWidth + j] += x[b * kWidth + i] * w[i * kWidth + j];
}
void multiply_backward(Batch& dx, std::span<float> dw, const Batch& dy, const Batch& x, std::span<const float> w) {
  for (int b = 0; b < kBatch; ++b)
    for (int i = 0; i < kWidth; ++i) {
      float sum = 0;
      for (int j = 0; j < kWidth; ++j) {
        sum += dy[b * kWidth + j] * w[i * kWidth + j];
        dw[i * kWidth + j] += x[b * kWidth + i] * dy[b * kWidth + j];
      }
      dx[b * kWidth + i] += sum;
    }
}

void adamw(std::span<float> w, std::span<const float> g, std::span<float> m, std::span<float> v, int step) {
  const float to_m = 1 - std::pow(0.9F, static_cast<float>(step)), to_v = 1 - std::pow(0.999F, static_cast<float>(step));
  for (std::size_t i = 0; i < w.size(); ++i) {
    m[i] = 0.9F * m[i] + 0.1F * g[i];
    v[i] = 0.999F * v[i] + 0.001F * g[i] * g[i];
    w[i] -= 0.001F * (m[i] / to_m / (std::sqrt(v[i] / to_v) + 1e-8F) + 0.01F * w[i]);
  }
}

// A layer is y = x + tanh(x · w).
class Network {
 public:
  explicit Network(const OffloadOptions& tiers)
      : manager_(tiers),
        head_optimizer_({.tiers = {.host_bytes = 256 * kKiB}}),
        head_(kWidth * kWidth, 0.01F),
        head_gradient_(head_.size()) {
    std::mt19937 random(1);
    for (auto& layer : layers_) {
      for (ChunkId* chunk : {&layer.w, &layer.g, &layer.m, &layer.v}) *chunk = manager_.add(kWeightBytes);
      const Use uses[] = {{layer.w, Access::overwrite}, {layer.m, Access::overwrite}, {layer.v, Access::overwrite}};
      const Lease lease = manager_.acquire(uses, Tier::host);
      for (auto& w : floats(lease, 0)) w = (static_cast<float>(random() >> 8) * 0x1p-24F - 0.5F) * 0.1F;
      for (const std::size_t moment : {1, 2}) std::ranges::fill(floats(lease, moment), 0.0F);
    }
    head_optimizer_.add("head", std::span(head_), std::span(head_gradient_));
  }

  // One step; returns the mean squared error. The manager learns the order of the leases in the first.
  float step(const Batch& input, const Batch& target, int step) {
    manager_.begin_pass();
    std::vector<Activations::Saved> saved;
    const Batch last = forward(input, saved);
    Batch gradient(last.size());
    const float loss = head(gradient, last, target);
    backward(gradient, saved);
    for (const auto& layer : layers_) {
      const Use uses[] = {
          {layer.w, Access::update}, {layer.g, Access::read}, {layer.m, Access::update}, {layer.v, Access::update}};
      {
        const Lease lease = manager_.acquire(uses, Tier::host);
        adamw(floats(lease, 0), floats(lease, 1), floats(lease, 2), floats(lease, 3), step);
      }
      manager_.drop(layer.g);  // it is never written to the disk again
    }
    head_optimizer_.step({.rate = 0.001});
    manager_.end_pass();
    return loss;
  }

  [[nodiscard]] const ChunkManager& manager() const { return manager_; }

 private:
  struct Layer {
    ChunkId w{}, g{}, m{}, v{};
  };

  Batch forward(Batch x, std::vector<Activations::Saved>& saved) {
    for (const auto& layer : layers_) {
      Batch y(x.size());
      multiply(y, x, floats(manager_.acquire(layer.w, Tier::device, Access::read)));
      for (auto& number : y) number = std::tanh(number);
      for (const auto* kept : {&x, &y}) saved.push_back(activations_.offload(std::as_bytes(std::span(*kept))));
      for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
    }
    return x;
  }

  float head(Batch& dx, const Batch& x, const Batch& target) {
    Batch y(x.size());
    multiply(y, x, head_);
    float loss = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      y[i] = (y[i] - target[i]) / static_cast<float>(y.size());
      loss += y[i] * y[i] * static_cast<float>(y.size());
    }
    std::ranges::fill(head_gradient_, 0.0F);
    multiply_backward(dx, head_gradient_, y, x, head_);
    return loss;
  }

  void backward(Batch& gradient, std::vector<Activations::Saved>& saved) {
    const auto fetch = [&](Batch& to) {
      activations_.fetch(saved.back(), std::as_writable_bytes(std::span(to)));
      saved.pop_back();
    };
    Batch x(gradient.size()), y(gradient.size());
    for (auto layer = std::rbegin(layers_); layer != std::rend(layers_); ++layer) {
      fetch(y);
      fetch(x);
      for (std::size_t i = 0; i < y.size(); ++i) y[i] = gradient[i] * (1 - y[i] * y[i]);
      const Use uses[] = {{layer->w, Access::read}, {layer->g, Access::overwrite}};
      const Lease lease = manager_.acquire(uses, Tier::device);
      std::ranges::fill(floats(lease, 1), 0.0F);
      multiply_backward(gradient, floats(lease, 1), y, x, floats(lease, 0));
    }
  }

  ChunkManager manager_;
  Activations activations_{manager_, {.piece_bytes = 16 * kKiB}};
  OptimizerState head_optimizer_;
  std::vector<float> head_, head_gradient_;
  Layer layers_[kLayers];
};

// The rows of a batch are waves, and so are their targets, a little later.
std::vector<float> train(Network& network) {
  std::vector<float> losses;
  for (int step = 1; step <= kSteps; ++step) {
    Batch input, target;
    for (int i = 0; i < kBatch * kWidth; ++i) {
      const auto at = static_cast<float>(i % kWidth) * 0.02F * static_cast<float>(1 + (i / kWidth + step) % 5);
      input.push_back(std::sin(at));
      target.push_back(std::sin(at + 0.3F));
    }
    losses.push_back(network.step(input, target, step));
  }
  return losses;
}

}  // namespace

int main(int argc, char** argv) try {
  Network whole({.device_bytes = kModelBytes, .host_bytes = 2 * kModelBytes});
  Network tiered({.device_bytes = kModelBytes / 12,
                  .host_bytes = kModelBytes / 6,
                  .nvme_paths = {argc > 1 ? argv[1] : "scratch"},
                  .nvme_bytes = 2 * kModelBytes});
  const auto losses = train(whole);
  if (train(tiered) != losses || whole.manager().traffic().read != 0) {
    std::puts("the losses differ");
    return 1;
  }
  const auto moved = tiered.manager().traffic();
  std::printf("loss %.4f, after %d steps %.4f, with every bit of the run in memory; %s read, %s written\n", losses.front(),
              kSteps, losses.back(), format_bytes(moved.read).c_str(), format_bytes(moved.write).c_str());
} catch (const Error& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
