#include <terrace/parallel/passes/tensor_passes.h>

namespace terrace {
namespace {

class TensorExchanges {
 public:
  TensorExchanges(const Program& program, const StepMap& map) : map_(map), out_{program.layers, program.micro_batches, {}} {
    for (const auto& a : program.actions) {
      if (is_forward(a.op) || is_backward(a.op))
        add(a);
      else
        out_.actions.push_back(a);
    }
  }
  Program take() { return std::move(out_); }

 private:
  void add(const Action& a) {
    const bool last = a.layer + 1 == map_.layers(), sequence = map_.buffers().makes_whole(a.layer);
    const auto& layer = *map_.model().layers[a.layer];
    if (layer.on_shares()) {
      out_.actions.push_back(a);
      return;
    }
    const bool reads_x = is_forward(a.op) || map_.keeps_input(a.layer);
    if (sequence && reads_x && a.layer != 0) exchange(Op::assemble, Payload::activation, a, a.layer);
    if (sequence && is_backward(a.op) && !last) exchange(Op::assemble, Payload::gradient, a, a.layer + 1);
    out_.actions.push_back(a);
    if ((a.op == Op::forward || a.op == Op::evaluate) && !last && !layer.adds_up())
      exchange(Op::combine, Payload::activation, a, a.layer + 1);
    const bool has_dx = is_backward(a.op) && a.op != Op::backward_weight && a.layer > map_.layout().first_trained();
    if (has_dx) exchange(Op::combine, Payload::gradient, a, a.layer);
  }
  void exchange(Op op, Payload payload, const Action& of, std::uint32_t layer) {
    out_.actions.push_back({.op = op, .layer = layer, .micro_batch = of.micro_batch, .payload = payload});
  }

  const StepMap& map_;
  Program out_;
};

}  // namespace

Program with_tensor_exchanges(const Program& program, const StepMap& map) {
  return map.tensor().ranks == 1 ? program : TensorExchanges(program, map).take();
}

Program with_unions(const Program& program, const StepMap& map) {
  if (map.parts().ranks() == 1) return program;
  Program out{program.layers, program.micro_batches, {}};
  for (const auto& a : program.actions) {
    if (a.op == Op::norm && map.unifies(a.layer))
      out.actions.push_back({.op = Op::unify, .layer = a.layer, .update = a.update});
    out.actions.push_back(a);
  }
  return out;
}

}  // namespace terrace
