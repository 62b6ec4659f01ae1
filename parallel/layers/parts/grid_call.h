// The description of a layer's call that has exchanges inside: its phases, what each phase does, and the working tensors
// between them. phases() and work() return parts of the description, and a phase runs its step of it.
//
// Owner:   a value of one call of phases(), work(), forward() or backward(). Threads: values.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <terrace/parallel/layers/parts/views.h>
#include <terrace/parallel/model/layer.h>

namespace terrace::layers {

// A tensor of a call that a phase reads or writes.
struct GridTensor {
  enum class In : std::uint8_t { work, saved, carried } in = In::work;
  std::uint32_t number = 0;

  [[nodiscard]] TensorView view(const LayerTensors& t, Shape shape) const {
    return part((in == In::work ? t.work : in == In::saved ? t.saved : t.carried)[number], 0, shape);
  }
  // Adds this tensor to those that the phase uses. Saved tensors have one access for all of them, `of_all`, and so have carried
  // ones.
  void use(Phase& phase, Access access, Access of_all) const {
    if (in == In::work) phase.work.push_back({number, access});
    if (in == In::saved) phase.saved = of_all;
    if (in == In::carried) phase.carried = of_all;
  }
};

class GridCall {
 public:
  using Run = std::function<void(LayerContext&, const LayerTensors&)>;

  // A working tensor for several phases, as large as the greatest reserve() for it.
  std::uint32_t room(std::string name, DType dtype);
  void reserve(std::uint32_t room, std::int64_t elements);
  static TensorView view(const LayerTensors& t, std::uint32_t room, Shape shape) { return part(t.work[room], 0, shape); }

  // The working tensors that a phase reads, and those that it writes.
  static std::vector<PhaseWork> uses(const std::vector<std::uint32_t>& read, const std::vector<std::uint32_t>& written);
  void compute(Phase phase, Run run);
  void exchange(Half half, PhaseExchange exchange);

  [[nodiscard]] std::vector<TensorSpec> work() const;
  [[nodiscard]] std::vector<Phase> phases() const;
  void run(LayerContext& ctx, const LayerTensors& t, Half half) const;

 private:
  struct Room {
    std::string name;
    DType dtype;
    std::int64_t elements = 0;
  };
  struct Step {
    Phase phase;
    Run run;
  };
  std::vector<Room> rooms_;
  std::vector<Step> steps_;
};

}  // namespace terrace::layers
