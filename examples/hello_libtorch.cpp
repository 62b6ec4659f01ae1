// A module of libtorch whose weights, gradients, optimizer states and activations live in three tiers, four times its memory:
// terrace moves the bytes, libtorch computes. Then the same in memory alone: every loss is equal, to the bit.
//   hello_libtorch FOLDER     on a disk, for 1 GiB
#include <torch/torch.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <functional>
#include <vector>

#include <terrace/core/base/units.h>
#include <terrace/offload/manager/activations.h>

using namespace terrace;
using torch::Tensor;

constexpr std::int64_t kLayers = 16, kWidth = 1024, kRows = 256;
constexpr std::uint64_t kMatrix = kWidth * kWidth * sizeof(float), kState = 4 * kLayers * kMatrix, kDevice = 4 * kMatrix,
                        kHost = kState / 4 - kDevice;
constexpr int kSteps = 4;
constexpr double kRate = 1e-3, kBeta1 = 0.9, kBeta2 = 0.999, kEps = 1e-8, kDecay = 0.01;  // defaults of AdamWOptions

Tensor matrix(const Lease& lease, std::size_t i) { return torch::from_blob(lease.bytes(i).data(), {kWidth, kWidth}); }
std::span<std::byte> bytes_of(const Tensor& t) { return {static_cast<std::byte*>(t.data_ptr()), t.nbytes()}; }

struct TieredLayer {
  TieredLayer(ChunkManager& manager, Activations& saved) : chunks(manager), activations(saved) {
    for (auto& use : all) use.chunk = chunks.add(kMatrix);
  }
  Lease lease(Access access) {
    for (auto& use : all) use.access = access;
    return chunks.acquire(all, Tier::device);
  }
  void update(int step) {  // torch::optim::AdamW
    const Lease leased = lease(Access::update);
    Tensor w = matrix(leased, 0), g = matrix(leased, 1), m = matrix(leased, 2), v = matrix(leased, 3);
    w.mul_(1 - kRate * kDecay);
    m.mul_(kBeta1).add_(g, 1 - kBeta1);
    v.mul_(kBeta2).addcmul_(g, g, 1 - kBeta2);
    const auto denominator = (v.sqrt() / std::sqrt(1 - std::pow(kBeta2, step))).add_(kEps);
    w.addcdiv_(m, denominator, -kRate / (1 - std::pow(kBeta1, step)));
  }
  ChunkManager& chunks;
  Activations& activations;
  std::array<Use, 4> all;  // weight, gradient, first and second moment
  Activations::Saved x, y;
};

// y = tanh(x·Wᵀ). The weight is leased while it is used; x and y are in the tiers until the backward.
struct TieredTanh : torch::autograd::Function<TieredTanh> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, std::int64_t address) {
    auto& layer = *reinterpret_cast<TieredLayer*>(address);
    const auto y = torch::tanh(x.mm(matrix(layer.chunks.acquire(layer.all[0].chunk, Tier::device, Access::read), 0).t()));
    layer.x = layer.activations.offload(bytes_of(x)), layer.y = layer.activations.offload(bytes_of(y));
    context->saved_data["layer"] = address;
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list dy) {
    auto& layer = *reinterpret_cast<TieredLayer*>(context->saved_data["layer"].toInt());
    const auto x = torch::empty({kRows, kWidth}), y = torch::empty({kRows, kWidth});
    layer.activations.fetch(std::exchange(layer.y, {}), bytes_of(y)),
        layer.activations.fetch(std::exchange(layer.x, {}), bytes_of(x));
    const auto dz = torch::tanh_backward(dy[0], y);
    const std::array<Use, 2> uses{{{layer.all[0].chunk, Access::read}, {layer.all[1].chunk, Access::overwrite}}};
    const Lease lease = layer.chunks.acquire(uses, Tier::device);
    matrix(lease, 1).copy_(x.t().mm(dz).t());
    return {dz.mm(matrix(lease, 0)), Tensor()};
  }
};

std::vector<float> train(const char* where, const std::function<Tensor(Tensor)>& layers,
                         const std::function<void(int)>& update) {
  std::vector<float> losses;
  torch::manual_seed(2);
  const auto x = torch::randn({kRows, kWidth}).requires_grad_(), target = torch::randn({kRows, kWidth}).tanh();
  const auto begin = std::chrono::steady_clock::now();
  for (int step = 1; step <= kSteps; ++step) {
    const auto loss = torch::mse_loss(layers(x), target);
    loss.backward(), update(step);
    losses.push_back(loss.item<float>());
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("%s: loss %.5f, then %.5f; %.2f s a step\n", where, losses.front(), losses.back(), took.count() / kSteps);
  return losses;
}

int main(int, char** words) {
  ChunkManager chunks({.device_bytes = kDevice, .host_bytes = kHost, .nvme_paths = {words[1]}, .nvme_bytes = 2 * kState});
  Activations activations(chunks);
  torch::manual_seed(1);
  std::deque<TieredLayer> tiered;
  std::vector<Tensor> plain;
  for (std::int64_t l = 0; l < kLayers; ++l) {
    plain.push_back((torch::randn({kWidth, kWidth}) / std::sqrt(kWidth)).requires_grad_());
    const Lease lease = tiered.emplace_back(chunks, activations).lease(Access::overwrite);
    matrix(lease, 0).copy_(plain.back().detach());
    matrix(lease, 2).zero_(), matrix(lease, 3).zero_();
  }
  const auto forward = [&](Tensor x) {
    for (auto& layer : tiered) x = TieredTanh::apply(x, reinterpret_cast<std::int64_t>(&layer));
    return x;
  };
  const auto in_tiers = train("in tiers", forward, [&](int step) {
    const torch::NoGradGuard none;
    for (auto& layer : tiered) layer.update(step);
  });
  torch::optim::AdamW adamw(plain, torch::optim::AdamWOptions());
  const auto in_memory = train(
      "in memory",
      [&](Tensor x) {
        adamw.zero_grad();
        for (auto& w : plain) x = torch::tanh(x.mm(w.t()));
        return x;
      },
      [&](int) { adamw.step(); });
  std::printf("%s; %s of state in %s, %s read\n", in_tiers == in_memory ? "every bit is equal" : "THE LOSSES DIFFER",
              format_bytes(kState).c_str(), format_bytes(kState / 4).c_str(), format_bytes(chunks.traffic().read).c_str());
  return in_tiers == in_memory ? 0 : 1;
}
