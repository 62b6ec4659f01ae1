// Runs programs as the walk decides. Moves go to the mover, computations to the device's stream or, if the device has its own
// processor, also to the host's. Lanes wait for each other. The rank thread waits only at the program's end, for a verdict, and
// for the report that decides on an optional phase.
//
// Owner:   the engine. Threads: run() from the rank thread.
// Errors:  the first failure of any lane, with its chunk, tier and file; nothing is left running.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <terrace/core/base/trace.h>
#include <terrace/core/device/device.h>
#include <terrace/offload/move/lanes.h>
#include <terrace/offload/move/mover.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/parallel/map/step_map.h>
#include <terrace/parallel/run/compute.h>
#include <terrace/parallel/walk/live_activations.h>
#include <terrace/parallel/walk/overlap.h>
#include <terrace/parallel/walk/walk.h>

namespace terrace::running {

struct StepResult {
  double loss_sum = 0;              // over target tokens, micro-batches folded in order
  std::vector<double> losses;       // Compute::losses()
  RouterResult router;              // Compute::router()
  double gradient_norm = 0;         // global, before clipping; 0 in programs without norms
  std::vector<double> group_norms;  // Compute::group_norms()
  // For an asynchronous order: each update's part of the losses, and its norm; gradient_norm above is that of the last update.
  std::vector<double> loss_sums, gradient_norms;
  double seconds = 0, compute_seconds = 0;
  std::map<std::string, double> stall_s;  // by cause
  walk::Communicated communicated;        // between ranks, and how much of it overlapped with computing
  memory::Traffic moved;                  // issued by this program
  walk::PeakLive live;                    // counted while the computations ran
};

class Executor : private walk::Sink {
 public:
  struct Parts {
    Device* device = nullptr;
    std::byte* device_base = nullptr;
    std::byte* host_base = nullptr;
    const StepMap* map = nullptr;
    walk::Walk* walk = nullptr;
    offload::Mover* mover = nullptr;
    const offload::Lanes* lanes = nullptr;
    const Optimizer* optimizer = nullptr;
    const mesh::Groups* groups = nullptr;  // null if nothing is exchanged
    Trace* trace = nullptr;                // may be null
  };
  explicit Executor(const Parts& parts);
  ~Executor() override;

  // `share` says which ranks' losses and norm the result covers.
  StepResult run(const Program& program, const StepInput& input, Compute::Share share = Compute::Share::none);
  Event flush();  // begins to write every state chunk that is not valid on disk; the event is the end of these writes

 private:
  void move(const Move& move) override;
  void compute(const Action& action, std::span<const Use> uses, const memory::Residency::Granted& granted, Lane lane,
               std::uint64_t sequence) override;
  bool leaves_out(const Action& action) override;

  void account_stall(std::int64_t begin_ns, std::int64_t end_ns, const Clock& after);

  Parts parts_;
  void synchronize() const;

  const std::unique_ptr<Device> host_;                         // null if the device is the host itself
  const std::array<std::unique_ptr<Stream>, kLanes> streams_;  // [lane]
  Compute compute_;
  walk::LiveActivations live_;
  std::mutex result_mutex_;
  StepResult result_;
  walk::OverlapMeter overlap_;
  // When the last operation of each kind ended.
  std::int64_t computed_ns_ = 0, updated_ns_ = 0, received_ns_ = 0;
  std::array<std::int64_t, kLanes> communicated_ns_{};  // [lane] of collectives
};

}  // namespace terrace::running
