// Reports accesses of the host's own threads to the fake GPU while they happen: updates on the host, and reads and writes of a
// disk.
//
// Owner: the caller; the fake is shared, and outlives all uses. Threads: as Optimizer and IoEngine. Errors: those of the
//        wrapped object; races are complaints of the fake.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <terrace/offload/io/io_engine.h>
#include <terrace/tests/support/gpu/touched_updates.h>

namespace terrace::test {

class ToldOptimizer final : public Optimizer {
 public:
  ToldOptimizer(std::unique_ptr<Optimizer> inner, std::shared_ptr<FakeCuda> fake, int endless = 0)
      : inner_(std::move(inner)), fake_(std::move(fake)), endless_(endless) {}
  [[nodiscard]] std::string name() const override { return inner_->name(); }
  [[nodiscard]] std::vector<ChunkKind> states() const override { return inner_->states(); }
  [[nodiscard]] std::optional<LayerUnit> layer_unit() const override { return inner_->layer_unit(); }
  void update(ThreadPool& pool, const UpdateStep& step, const ChunkUpdate& chunk) const override {
    const auto use = fake_->host_uses(touched_by(kName, chunk));
    inner_->update(pool, step, chunk);
  }
  void enqueue(Stream& stream, const UpdateStep& step, const ChunkUpdate& chunk) const override {
    if (!stream.device().computes_on_host()) return inner_->enqueue(stream, step, chunk);
    during(stream, touched_by(kName, chunk), [&] { inner_->enqueue(stream, step, chunk); });
  }
  void enqueue_layer(Stream& stream, const UpdateStep& step, const LayerUpdate& layer) const override {
    if (!stream.device().computes_on_host()) return inner_->enqueue_layer(stream, step, layer);
    during(stream, touched_by(kName, *layer_unit(), layer), [&] { inner_->enqueue_layer(stream, step, layer); });
  }

 private:
  static constexpr const char* kName = "an update on the host";

  template <class Enqueue>
  void during(Stream& stream, FakeCuda::Touched touched, const Enqueue& enqueue) const {
    auto use = std::make_shared<std::shared_ptr<void>>();
    stream.submit([use, fake = fake_, touched = std::move(touched)] { *use = fake->host_uses(touched); });
    enqueue();
    stream.submit([this, use] { --endless_ >= 0 ? void(kept_.push_back(*use)) : use->reset(); });
  }

  const std::unique_ptr<Optimizer> inner_;
  const std::shared_ptr<FakeCuda> fake_;
  mutable int endless_;  // the number of uses that stay reported for ever, to plant a race
  mutable std::vector<std::shared_ptr<void>> kept_;
};

class ToldIo final : public IoEngine {
 public:
  ToldIo(std::unique_ptr<IoEngine> inner, std::shared_ptr<FakeCuda> fake, int endless = 0)
      : inner_(std::move(inner)), fake_(std::move(fake)), endless_(endless) {}

  void submit(std::span<IoRequest* const> requests) override {
    for (IoRequest* const request : requests) {
      const bool reads = request->op == IoRequest::Op::read;
      FakeCuda::Touched touched{.name = reads ? "a read from the disk" : "a write to the disk"};
      touched.add(request->buffer, request->bytes, reads);
      auto use = fake_->host_uses(std::move(touched));
      if (reads && --endless_ >= 0) kept_.push_back(use);
      request->done = [use = std::move(use), done = std::move(request->done)](IoRequest& ended, int error_number) mutable {
        use.reset();
        done(ended, error_number);
      };
    }
    inner_->submit(requests);
  }
  std::size_t poll(std::chrono::nanoseconds wait) override { return inner_->poll(wait); }
  void wake() override { inner_->wake(); }
  [[nodiscard]] std::size_t in_flight() const override { return inner_->in_flight(); }
  [[nodiscard]] std::string name() const override { return inner_->name(); }

 private:
  const std::unique_ptr<IoEngine> inner_;
  const std::shared_ptr<FakeCuda> fake_;
  int endless_;
  std::vector<std::shared_ptr<void>> kept_;
};

}  // namespace terrace::test
