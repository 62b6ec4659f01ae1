#include <terrace/examples/terrace/run/start_notes.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/examples/terrace/base/disk_folders.h>
#include <terrace/examples/terrace/base/shell_word.h>
#include <terrace/examples/terrace/data/found_data.h>
#include <terrace/examples/terrace/data/run_tokenizer.h>
#include <terrace/examples/terrace/metrics/metrics.h>
#include <terrace/examples/terrace/plan/device.h>
#include <terrace/examples/terrace/plan/pipeline_setup.h>
#include <terrace/examples/terrace/plan/setup.h>

namespace terrace::cli {
namespace {

void note_resume(Screen& screen, const RunConfig& config, const AgreedPlan& agreed, const RunDir& dir, const Team& team,
                 const Start& start) {
  screen.note(fmt::format("resumed after step {}; the state is in {}", start.done,
                          (dir.store.paths.front() / dir.store.name).string()));
  if (!dir.reshard_from.empty())
    screen.note(fmt::format(
        "the state of {} rank{} is redistributed to {}{}", dir.reshard_from.size(), dir.reshard_from.size() == 1 ? "" : "s",
        team.size(),
        config.parallel.canonical_reduction ? "" : "; without --canonical-reduction sums may be rounded differently"));
  else if (team.first() && agreed.request().data.sum_order() == comm::SumOrder::machines && !start.moved_from.empty() &&
           start.moved_from != dir.machines)
    screen.warn(
        fmt::format("the ranks of this run were on machines of {} ranks and are now on machines of {}: gradients are added in "
                    "another order, and sums may be rounded differently; --ranks-per-machine can give the former order",
                    fmt::join(start.moved_from, " + "), fmt::join(dir.machines, " + ")));
}

}  // namespace

void note_start(Screen& screen, const RunConfig& config, const AgreedPlan& agreed, const RunDir& dir, const Team& team,
                const Start& start) {
  if (const auto data = describe_data(config); !data.empty()) screen.note(data);
  if (team.first() && !dir.resume && !config.found.chosen.empty())
    screen.note(fmt::format("chosen: {}", fmt::join(config.found.chosen, ", ")));
  if (const auto warning = warning_of_profile(config); warning && team.first()) screen.warn(*warning);
  screen.note(agreed.describe());
  if (!agreed.found_schedule().empty())
    screen.note(fmt::format("--schedule auto: {} {}, with stages of {} layers",
                            agreed.schedule_was_recorded() ? "this run continues with its schedule," : "chose",
                            agreed.schedule_name(), stage_layers(*agreed.request().pipeline)));
  if (dir.resume) return note_resume(screen, config, agreed, dir, team, start);
  if (!team.first()) return;
  if (config.parallel.zero > 0 && config.parallel.dp * config.parallel.cp == 1)
    screen.note(
        fmt::format("--zero {}: there is one data rank, so nothing is sharded; the budgets decide what lies in which tier, "
                    "and --dp or terrace launch give more ranks",
                    config.parallel.zero));
  if (const auto disk = warning_of_root_disk(config)) screen.warn(*disk);
  for (const auto& warning : warnings_of(config, agreed.model())) screen.warn(warning);
}

void note_next(Screen& screen, const RunConfig& config, const std::filesystem::path& run, std::uint64_t done) {
  if (const auto best = best_evaluation(run / kMetricsFile); best && best->step < done)
    screen.note(fmt::format("the held-out loss was lowest after step {}: {}{}", best->step, format_number(*best->eval_loss, 6),
                            config.run.ckpt_keep > 1 ? "; terrace ckpt list shows the commits that are kept"
                                                     : "; --ckpt-interval and --ckpt-keep keep earlier commits"));
  const auto name = shell_word(run.string());
  screen.note(fmt::format("next: terrace {} {}{} | terrace eval {} --data FILE | terrace ckpt export {} NEW-DIRECTORY",
                          config.data.format == DataFormat::conversations ? "chat" : "generate", name,
                          config.data.format == DataFormat::conversations ? "" : " --prompt TEXT", name, name));
}

}  // namespace terrace::cli
