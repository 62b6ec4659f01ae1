// What the ranks of a run agree on before anything of it is touched: the model, its first weights, the rates of the machine,
// the schedule, and the plan.
//
//   AgreedPlan agreed(config);  then, on all ranks: agree(), make(), demand_same_steps()
//
// Owner:   the rank's training; borrows the configuration. Threads: the rank's.
// Errors:  Error(Exit::usage) for impossible settings; Error(Exit::does_not_fit).
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include <terrace/core/machine.h>
#include <terrace/examples/terrace/run_config.h>
#include <terrace/examples/terrace/team.h>
#include <terrace/parallel/engine.h>
#include <terrace/parallel/plan.h>

namespace terrace::cli {

class AgreedPlan {
 public:
  explicit AgreedPlan(const RunConfig& config);

  // All ranks must plan alike: they take the budgets of the rank that has least, and the rates, schedule and stages of the
  // first.
  void agree(Team& team);
  // Throws an error if the plan does not fit. Only the first rank's times are shown, so only the first rank measures.
  void make(const Team& team);
  // The ranks of a stage must have the same program, or their first collectives would not match.
  void demand_same_steps(Team& team) const;

  [[nodiscard]] const Model& model() const { return model_; }
  [[nodiscard]] const WeightSource& first_weights() const { return first_weights_; }
  [[nodiscard]] const MachineProfile& profile() const { return profile_; }
  [[nodiscard]] const PlanRequest& request() const { return request_; }
  [[nodiscard]] const Plan& plan() const { return plan_; }
  // --schedule auto: found_to_text(); otherwise empty. And whether it is that of the resumed run.
  [[nodiscard]] const std::string& found_schedule() const { return found_schedule_; }
  [[nodiscard]] bool schedule_was_recorded() const { return schedule_was_recorded_; }
  [[nodiscard]] const std::string& schedule_name() const { return schedule_name_; }
  [[nodiscard]] Mesh mesh() const { return mesh_of(model_, request_); }

  // "gpt2 with 124.4M parameters, …": this rank, its model and budgets, and what bounds its steps.
  [[nodiscard]] std::string describe() const;
  // The first rank's plan, with the greatest peaks of all ranks. With several ranks also the bytes that all of them move, as in
  // the metrics.
  [[nodiscard]] nlohmann::json to_json(Team& team) const;

 private:
  void agree_on_schedule(Team& team);

  const RunConfig& config_;
  Model model_;
  WeightSource first_weights_;
  MachineProfile profile_;
  PlanRequest request_;
  Plan plan_;
  std::string schedule_name_ = config_.schedule;
  std::string found_schedule_;
  bool schedule_was_recorded_ = false;
  std::uint64_t program_hash_ = 0;  // of the steady step, before this rank's part is taken
};

}  // namespace terrace::cli
