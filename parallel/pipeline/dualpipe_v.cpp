#include <fmt/format.h>

#include <terrace/core/base/refused_setting.h>
#include <terrace/parallel/pipeline/orders.h>

namespace terrace::pipeline {
namespace {

// Writes one rank's list. Side 0 is the rank's stage on the way down the V, side 1 its stage on the way back.
class Writer {
 public:
  Writer(std::uint32_t rank, std::uint32_t stages) : stage_{rank, stages - 1 - rank} {}
  void forward(int side) { tasks.push_back({Work::forward, stage_[side], forwards_[side]++}); }
  void backward(int side) { tasks.push_back({Work::backward, stage_[side], backwards_[side]++}); }
  void input(int side) {
    tasks.push_back({Work::input, stage_[side], backwards_[side]});
    waiting_.push_back({Work::weight, stage_[side], backwards_[side]++});
  }
  void weight() {
    if (first_waiting_ == waiting_.size()) return;
    tasks.push_back(waiting_[first_waiting_++]);
  }
  void all_weights() {
    while (first_waiting_ < waiting_.size()) weight();
  }
  std::vector<Task> tasks;

 private:
  std::uint32_t stage_[2], forwards_[2] = {}, backwards_[2] = {};
  std::vector<Task> waiting_;
  std::size_t first_waiting_ = 0;
};

}  // namespace

// Eight phases (DeepSeek 2025, cut in half by the V). A forward of one side is next to a backward of the other, so that the
// all-to-alls of expert parallelism in one can be hidden by the computing of the other.
Schedule dualpipe_v(const OrderOptions& o) {
  const auto p = o.ranks, m = o.micro_batches;
  if (m < 2 * p)
    throw RefusedSetting(
        "grad-accumulation",
        fmt::format("`schedule` dualpipe-v on {} ranks needs at least {} micro-batches, and there are {}\n  give "
                    "`grad-accumulation` {}, or another `schedule`",
                    p, 2 * p, m, 2 * p));
  Schedule s{.placement = v_shape(p), .micro_batches = m, .tasks = {}};
  for (std::uint32_t rank = 0; rank < p; ++rank) {
    Writer w(rank, 2 * p);
    const auto times = [](std::uint32_t count, const auto& body) {
      for (std::uint32_t i = 0; i < count; ++i) body(i);
    };
    const auto behind = p - 1 - rank;  // ranks between this one and the V's turn
    times(2 * behind, [&](auto) { w.forward(0); });
    times(rank + 1, [&](auto) { w.forward(0), w.forward(1); });
    times(behind, [&](auto) { w.input(1), w.weight(), w.forward(1); });
    times(m - 2 * p + rank + 1, [&](auto) { w.forward(0), w.backward(1), w.forward(1), w.backward(0); });
    times(behind, [&](auto) { w.backward(1), w.forward(1), w.backward(0); });
    const auto last = rank + 1;  // in its second half, weight halves wait: other ranks need the inputs first
    times(last, [&](std::uint32_t i) {
      for (const int side : {1, 0}) {
        if (2 * i + (side == 0 ? 1 : 0) >= last) {
          w.input(side);
        } else {
          w.backward(side);
        }
      }
    });
    times(behind, [&](auto) { w.weight(), w.input(0); });
    w.all_weights();
    s.tasks.push_back(std::move(w.tasks));
  }
  return s;
}

}  // namespace terrace::pipeline
