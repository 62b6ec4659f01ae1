// The values that the ranks of a run agree on before they touch any of its files: the model, its first weights, the machine's
// rates, the schedule, and the plan.
//
//   AgreedPlan agreed(config);  then, on all ranks: agree(), make(), demand_same_steps()
//
// Owner:   the rank's training; borrows the configuration. Threads: the rank's.
// Errors:  Error(ErrorKind::refused) for impossible settings; Error(ErrorKind::does_not_fit).
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include <terrace/core/machine/machine.h>
#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/examples/terrace/ranks/team.h>
#include <terrace/parallel/plan/plan.h>
#include <terrace/parallel/run/engine.h>

namespace terrace::cli {

class AgreedPlan {
 public:
  explicit AgreedPlan(const RunConfig& config);

  // Makes all ranks plan alike: they take the smallest budgets of all ranks, and the rates, schedule and stages of the first
  // rank.
  void agree(Team& team);
  // Throws if the plan does not fit. Only the first rank measures, because only its times are shown.
  void make(const Team& team);
  // Throws unless all ranks of a stage have the same program; otherwise their first collectives would not match.
  void demand_same_steps(Team& team) const;

  [[nodiscard]] const Model& model() const { return model_; }
  [[nodiscard]] const WeightSource& first_weights() const { return first_weights_; }
  [[nodiscard]] const MachineProfile& profile() const { return profile_; }
  [[nodiscard]] const PlanRequest& request() const { return request_; }
  [[nodiscard]] const Plan& plan() const { return plan_; }
  // With --schedule auto: the schedule as text (found_to_text()), and whether the resumed run had it. Otherwise empty.
  [[nodiscard]] const std::string& found_schedule() const { return found_schedule_; }
  [[nodiscard]] bool schedule_was_recorded() const { return schedule_was_recorded_; }
  [[nodiscard]] const std::string& schedule_name() const { return schedule_name_; }
  [[nodiscard]] Mesh mesh() const { return request_.mesh; }

  // "gpt2 with 124.4M parameters, …": this rank, its model and budgets, and what bounds its steps.
  [[nodiscard]] std::string describe() const;
  // The first rank's plan with the largest peaks of all ranks. With several ranks it also has the bytes that all of them move,
  // as in the metrics.
  [[nodiscard]] nlohmann::json to_json(Team& team) const;

 private:
  void agree_on_schedule(Team& team);

  const RunConfig& config_;
  Model model_;
  WeightSource first_weights_;
  MachineProfile profile_;
  PlanRequest request_;
  Plan plan_;
  std::string schedule_name_ = config_.parallel.schedule;
  std::string found_schedule_;
  bool schedule_was_recorded_ = false;
  std::uint64_t program_hash_ = 0;  // of the steady step, before for_rank()
};

}  // namespace terrace::cli
