#include <terrace/optimizers/cuda/cuda_optimizer.h>

#include <string>
#include <utility>

#include <terrace/core/cuda/stream.h>

namespace terrace::rules {
namespace {

class CudaOptimizer final : public Optimizer {
 public:
  CudaOptimizer(std::string_view name, const OptimizerSettings& settings, LaunchUpdate launch, EnqueueLayer enqueue_layer)
      : host_(make_optimizer(name, settings)),
        settings_(settings),
        launch_(std::move(launch)),
        enqueue_layer_(std::move(enqueue_layer)) {}

  [[nodiscard]] std::string name() const override { return host_->name(); }
  [[nodiscard]] std::vector<ChunkKind> states() const override { return host_->states(); }
  [[nodiscard]] std::optional<LayerUnit> layer_unit() const override { return host_->layer_unit(); }
  void enqueue_layer(Stream& stream, const UpdateStep& step, const LayerUpdate& layer) const override {
    if (stream.device().computes_on_host()) return host_->enqueue_layer(stream, step, layer);
    enqueue_layer_(stream, host_->name(), settings_, step, layer);
  }
  void update(ThreadPool& pool, const UpdateStep& step, const ChunkUpdate& chunk) const override {
    host_->update(pool, step, chunk);
  }
  void enqueue(Stream& stream, const UpdateStep& step, const ChunkUpdate& chunk) const override {
    if (stream.device().computes_on_host()) return host_->enqueue(stream, step, chunk);
    cuda::cuda_stream(stream).launch([this, step, own = chunk, parts = std::vector(chunk.parts.begin(), chunk.parts.end())](
                                         cuda::CudaStreamHandle handle) mutable {
      own.parts = parts;
      launch_(handle, host_->name(), settings_, step, own);
    });
  }

 private:
  const std::unique_ptr<Optimizer> host_;
  const OptimizerSettings settings_;
  const LaunchUpdate launch_;
  const EnqueueLayer enqueue_layer_;
};

}  // namespace

std::unique_ptr<Optimizer> make_cuda_optimizer(std::string_view name, const OptimizerSettings& settings, LaunchUpdate launch,
                                               EnqueueLayer enqueue_layer) {
  return std::make_unique<CudaOptimizer>(name, settings, std::move(launch), std::move(enqueue_layer));
}

}  // namespace terrace::rules
