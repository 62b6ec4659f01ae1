#include <terrace/examples/terrace/plan_lines.h>

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include <terrace/core/units.h>
#include <terrace/examples/terrace/setup.h>
#include <terrace/parallel/flops.h>

namespace terrace::cli {

std::string choice_lines(const Plan& p) {
  const auto text_of = [&](const StepChoice& c) { return to_text(c, static_cast<std::uint32_t>(p.map.activations.size())); };
  std::string lines;
  const auto say = [&]<class... A>(fmt::format_string<A...> text, A&&... a) {
    fmt::format_to(std::back_inserter(lines), text, std::forward<A>(a)...);
  };
  say("order {}\n", text_of(p.choice));
  if (p.tried.size() < 2) return lines;
  std::vector<TriedChoice> others;
  for (const auto& t : p.tried)
    if (t.choice != p.choice) others.push_back(t);
  const auto chosen = std::ranges::find(p.tried, p.choice, &TriedChoice::choice);
  std::ranges::stable_sort(others, {}, [](const TriedChoice& t) { return t.seconds.value_or(1e30); });
  const auto fits = [](const TriedChoice& t) { return t.seconds.has_value(); };
  say("  chosen of {} that were simulated at the profile's rates, of which {} fit", p.tried.size(),
      std::ranges::count_if(p.tried, fits));
  if (chosen != p.tried.end() && chosen->seconds) say(": {:.3f} s a step", *chosen->seconds);
  say("\n");
  if (!others.empty() && others.front().seconds) {
    // A plainer one is taken unless another is faster by more than a hundredth.
    const bool faster = chosen != p.tried.end() && chosen->seconds && *others.front().seconds < *chosen->seconds;
    say("  the next: {:.3f} s, {}{}\n", *others.front().seconds, text_of(others.front().choice),
        faster ? "; a plainer one is as good" : "");
  }
  const auto& plainest = p.tried.front();
  if (plainest.choice == p.choice || plainest.choice == others.front().choice) return lines;
  say("  the plainest: {}, {}\n", plainest.seconds ? fmt::format("{:.3f} s", *plainest.seconds) : "does not fit",
      text_of(plainest.choice));
  return lines;
}

std::string rank_lines(const RunConfig& config, const Model& model, const PlanRequest& request, const Plan& p) {
  const auto ranks = request.data.ranks;
  const auto tokens = static_cast<double>(config.batch_size * config.seq_len * config.grad_accumulation) * ranks;
  const auto flops = flops_of(model, request.shape.batch, p.programs.steady);
  const auto rate = [&](double of) { return of / p.times.seconds * 1e-12; };
  const auto& communicated = p.times.communicated;
  return fmt::format(
      "{} ranks, {} on a node; each sends {} within its node and {} to others a step\n"
      "gathers and reductions take {:.3f} s of it, {:.0f} % of that beside computing\n"
      "{:.4g} tokens a step, {:.4g} tokens/s; {:.3g} TFLOP/s of the model a rank, {:.3g} with recomputation\n",
      ranks, ranks_of_machine(config), format_bytes(static_cast<std::uint64_t>(p.steady_links.within)),
      format_bytes(static_cast<std::uint64_t>(p.steady_links.between)), communicated.seconds, 100 * communicated.hidden(),
      tokens, tokens / p.times.seconds, rate(flops.model), rate(flops.with_recomputation));
}

std::string average_line(const Plan& p) {
  const auto& a = p.average;
  const auto every = static_cast<double>(a.every);
  return fmt::format(
      "every {} steps weights are averaged: {} all-reduced in {:.3f} s, of which a step above has {} and {:.3f} s\n", a.every,
      format_bytes(a.summed_bytes), a.seconds, format_bytes(a.summed_bytes / a.every), a.seconds / every);
}

}  // namespace terrace::cli
