#include <terrace/parallel/passes/phase_pass.h>

namespace terrace::passes {

Program with_phases(const Program& program, const StepMap& map) {
  Program out{program.layers, program.micro_batches, {}};
  out.actions.reserve(program.actions.size());
  for (const auto& a : program.actions) {
    if (!is_cut(a.op)) {
      out.actions.push_back(a);
      continue;
    }
    for (const auto number : map.phases().numbers(a.op, a.layer)) {
      out.actions.push_back(a);
      out.actions.back().phase = number;
    }
  }
  return out;
}

}  // namespace terrace::passes
