#include <terrace/examples/terrace/report/report_about.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/printable.h>
#include <terrace/examples/terrace/base/svg.h>
#include <terrace/examples/terrace/cli/command_line.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/data/data_sources.h>
#include <terrace/examples/terrace/run/screen.h>

namespace terrace::cli {
namespace {

std::string model_of(const RunConfig& c) {
  auto text = fmt::format("{}: {} blocks of width {}, {} heads, vocabulary of {}", *c.model.family.get().name, c.model.layers,
                          c.model.hidden, c.model.heads, c.model.vocab);
  if (c.model.experts.count > 0) text += fmt::format(", {} experts", c.model.experts.count);
  if (!c.run.init_from.empty()) text += fmt::format("; from {}", base::printable(c.run.init_from));
  return text;
}

std::string parameters_of(const RunConfig& c, const nlohmann::json& plan) {
  const auto count = [&](const char* key) { return plan.is_object() ? plan.value(key, 0.0) * 1e-6 : 0.0; };
  const double all = count("parameters"), trained = count("trained_parameters");
  if (all == 0) return {};
  const auto text = fmt::format("{:.2f} million", all);
  if (trained == 0 || trained == all) return text + ", all trained";
  return fmt::format("{}; {:.2f} million ({:.2g} %) are trained{}, the others frozen", text, trained, 100 * trained / all,
                     c.train.lora_rank > 0 ? fmt::format(", adapters of rank {}", c.train.lora_rank) : "");
}

std::string data_of_run(const RunConfig& c, const RunSteps& steps) {
  constexpr std::size_t kShown = 3;
  std::string text;
  const auto files = data_files(c);
  for (std::size_t i = 0; i < std::min(kShown, files.size()); ++i)
    text += (i > 0 ? ", " : "") + base::printable(files[i].filename().string());
  if (files.size() > kShown) text += fmt::format(" and {} more", files.size() - kShown);
  return fmt::format("{} ({}), {} tokens trained on, in sequences of {}", text, word_of(c.data.format), steps.tokens,
                     c.model.seq_len);
}

std::string training_of(const RunConfig& c) {
  return fmt::format("{}, {}, learning rate {} ({}), {} × {} sequences a step{}", c.train.optimizer, word_of(c.model.dtype),
                     c.train.lr, word_of(c.train.lr_schedule), c.train.batch_size, c.train.grad_accumulation,
                     c.parallel.ranks() > 1 ? fmt::format(", {} ranks", c.parallel.ranks()) : "");
}

std::string place_of(const RunConfig& c, const nlohmann::json& plan) {
  const auto device = plan.is_object() ? plan.value("device", c.memory.device) : c.memory.device;
  return fmt::format("{}; budgets: device {}, host {}, disk {}", device, c.memory.device_memory, c.memory.host_memory,
                     c.memory.nvme_path.empty() ? "none" : c.memory.nvme_limit);
}

}  // namespace

std::string about_run(const std::filesystem::path& run_dir, const nlohmann::json& plan, const RunSteps& steps) try {
  RunConfig config;
  apply_file(config, run_dir / kConfigFile);
  std::string rows;
  for (const auto& [name, text] : std::vector<std::pair<const char*, std::string>>{{"model", model_of(config)},
                                                                                   {"parameters", parameters_of(config, plan)},
                                                                                   {"data", data_of_run(config, steps)},
                                                                                   {"training", training_of(config)},
                                                                                   {"machine", place_of(config, plan)}})
    if (!text.empty()) rows += fmt::format("<tr><td>{}</td><td class='text'>{}</td></tr>\n", name, escape(text));
  return fmt::format("<section>\n<div class='scroll'><table>\n{}</table></div>\n</section>\n", rows);
} catch (const std::exception&) {
  return {};
}

}  // namespace terrace::cli
