#include <terrace/examples/terrace/plan/plan_lines.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include <fmt/format.h>

#include <terrace/core/base/units.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/parallel/plan/flops.h>

namespace terrace::cli {

std::string choice_lines(const Plan& p) {
  const auto text_of = [&](const planning::StepChoice& c) {
    return to_text(c, static_cast<std::uint32_t>(p.map.activations.size()));
  };
  std::string lines;
  const auto say = [&]<class... A>(fmt::format_string<A...> text, A&&... a) {
    fmt::format_to(std::back_inserter(lines), text, std::forward<A>(a)...);
  };
  say("order {}\n", text_of(p.choice));
  if (p.restoring_seconds > 0)
    say("  if the norm clips, the next step takes early updates back, in {:.3f} s\n", p.restoring_seconds);
  if (p.tried.size() < 2) return lines;
  std::vector<planning::TriedChoice> others;
  for (const auto& t : p.tried)
    if (t.choice != p.choice) others.push_back(t);
  const auto chosen = std::ranges::find(p.tried, p.choice, &planning::TriedChoice::choice);
  std::ranges::stable_sort(others, {}, [](const planning::TriedChoice& t) { return t.seconds.value_or(1e30); });
  const auto fits = [](const planning::TriedChoice& t) { return t.seconds.has_value(); };
  // The choices are compared in a coarse simulation: large chunks, few steps, and the profile's rates in place of measured
  // layers. Its seconds are not those of the plan, so only their ratios are shown.
  const auto compared = [&](const planning::TriedChoice& t) -> std::string {
    if (!t.seconds) return "does not fit";
    if (chosen == p.tried.end() || !chosen->seconds) return "fits";
    const double percent = 100 * (*t.seconds / *chosen->seconds - 1);
    if (std::abs(percent) < 0.05) return "as fast";
    return fmt::format("{:.1f} % {}", std::abs(percent),
                       percent > 0 ? "slower" : "faster; below 1 % the simpler choice is taken");
  };
  say("  chosen from {} that were compared in a coarse simulation; {} of them fit\n", p.tried.size(),
      std::ranges::count_if(p.tried, fits));
  if (!others.empty() && others.front().seconds)
    say("  the next best: {}: {}\n", text_of(others.front().choice), compared(others.front()));
  const auto& plainest = p.tried.front();
  if (plainest.choice == p.choice || plainest.choice == others.front().choice) return lines;
  say("  the simplest: {}: {}\n", text_of(plainest.choice), compared(plainest));
  return lines;
}

std::uint64_t ranks_of_node(const RunConfig& config) {
  return config.parallel.ranks_per_machine > 0 ? static_cast<std::uint64_t>(config.parallel.ranks_per_machine)
                                               : ranks_of_machine(config);
}

std::string sum_line(const RunConfig& config, comm::SumOrder order) {
  const auto ranks = static_cast<std::uint64_t>(config.parallel.ranks()), each = ranks_of_node(config);
  if (ranks <= each || config.parallel.dp <= 1) return "";
  if (order == comm::SumOrder::ranks)
    return "gradients are added in the order of ranks: each rank sends every other the part that it owns\n";
  return "gradients are added on each node first, then between the nodes, by a tree\n";
}

std::string rank_lines(const RunConfig& config, const Model& model, const PlanRequest& request, const Plan& p) {
  const auto tokens = static_cast<double>(config.train.batch_size * config.model.seq_len * config.train.grad_accumulation) *
                      request.mesh.size(kBatchAxes);
  const auto flops = planning::flops_of(model, request.shape.batch, p.programs.steady);
  const auto rate = [&](double of) { return of / p.times.seconds * 1e-12; };
  const auto& communicated = p.times.communicated;
  return fmt::format(
      "{} ranks, {} on each node; in a step each rank sends {} within its node and {} to other nodes\n"
      "{}gathers and reductions take {:.3f} s of the step, {:.0f} % of it while the rank computes\n"
      "{:.4g} tokens a step, {:.4g} tokens/s; {:.3g} TFLOP/s of model computation a rank, {:.3g} with recomputation\n",
      config.parallel.ranks(), ranks_of_node(config), format_bytes(static_cast<std::uint64_t>(p.steady_links.within)),
      format_bytes(static_cast<std::uint64_t>(p.steady_links.between)), sum_line(config, request.data.sum_order()),
      communicated.seconds, 100 * communicated.hidden(), tokens, tokens / p.times.seconds, rate(flops.model),
      rate(flops.with_recomputation));
}

std::string commit_line(const RunConfig& config, const Plan& p) {
  // The run waits for the last commit.
  const auto commits = static_cast<double>(p.commits - 1) * p.commit_added_seconds + p.commit_seconds;
  const auto run = static_cast<double>(config.train.steps) * p.times.seconds + commits;
  const auto beside = p.commits > 1 && config.run.durability == Durability::commit
                          ? fmt::format(" beside the next step, and adds {:.3f} s to it", p.commit_added_seconds)
                          : ", without its syncs";
  return fmt::format(
      "a commit writes {} in {:.3f} s{}; {} of them are {:.2f} % of this run; {} generation{} of the state on "
      "disk\n",
      format_bytes(p.commit_traffic.write), p.commit_seconds, beside, p.commits, run > 0 ? 100 * commits / run : 0,
      p.generations, p.generations == 1 ? "" : "s");
}

std::string average_line(const Plan& p) {
  const auto& a = p.average;
  const auto every = static_cast<double>(a.every);
  return fmt::format(
      "every {} steps weights are averaged: {} all-reduced in {:.3f} s; the step above includes its share, {} and {:.3f} s\n",
      a.every, format_bytes(a.summed_bytes), a.seconds, format_bytes(a.summed_bytes / a.every), a.seconds / every);
}

}  // namespace terrace::cli
