#include <terrace/core/base/refused.h>
#include <terrace/examples/terrace/base/environment.h>
#include <terrace/examples/terrace/plan/choose_batch.h>
#include <terrace/examples/terrace/plan/choose_tiles.h>
#include <terrace/examples/terrace/trainer.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <terrace/core/base/json_text.h>
#include <terrace/core/base/notice.h>
#include <terrace/core/base/text_file.h>
#include <terrace/core/base/trace_file.h>
#include <terrace/core/device/device.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/examples/lm/models/weights.h>
#include <terrace/examples/terrace/base/commit_signal.h>
#include <terrace/examples/terrace/base/disk_folders.h>
#include <terrace/examples/terrace/base/stop_signal.h>
#include <terrace/examples/terrace/cli/command_line.h>
#include <terrace/examples/terrace/config/same_settings.h>
#include <terrace/examples/terrace/config/usual_settings.h>
#include <terrace/examples/terrace/data/check_tokens.h>
#include <terrace/examples/terrace/data/data_content.h>
#include <terrace/examples/terrace/data/data_sources.h>
#include <terrace/examples/terrace/data/run_data.h>
#include <terrace/examples/terrace/data/token_cache.h>
#include <terrace/examples/terrace/metrics/metrics.h>
#include <terrace/examples/terrace/metrics/metrics_sinks.h>
#include <terrace/examples/terrace/metrics/prometheus_sink.h>
#include <terrace/examples/terrace/metrics/step_metrics.h>
#include <terrace/examples/terrace/plan/device.h>
#include <terrace/examples/terrace/plan/measure.h>
#include <terrace/examples/terrace/plan/pipeline_setup.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/examples/terrace/ranks/agree_on_resume.h>
#include <terrace/examples/terrace/ranks/agreed_plan.h>
#include <terrace/examples/terrace/ranks/own_gpus.h>
#include <terrace/examples/terrace/ranks/rank_log.h>
#include <terrace/examples/terrace/ranks/ranks.h>
#include <terrace/examples/terrace/ranks/team.h>
#include <terrace/examples/terrace/report/report.h>
#include <terrace/examples/terrace/run/init_from.h>
#include <terrace/examples/terrace/run/kept_commits.h>
#include <terrace/examples/terrace/run/run_dir.h>
#include <terrace/examples/terrace/run/screen.h>
#include <terrace/examples/terrace/run/start_notes.h>
#include <terrace/examples/terrace/run/trainer_settings.h>
#include <terrace/examples/terrace/run/verify_resident.h>
#include <terrace/parallel/comm/nccl/nccl.h>
#include <terrace/parallel/run/engine.h>
#include <terrace/parallel/train/trainer.h>

namespace terrace::cli {
namespace {

bool due(std::uint64_t step, std::uint64_t every) { return every > 0 && step % every == 0; }

std::string held_out_before(double loss) {
  return fmt::format("held-out loss {} before the first step", format_number(loss, 6));
}

// The held-out losses in the result of a finished run; empty: it was not evaluated. JSON has null for a loss that is not
// finite.
std::string held_out(const nlohmann::json& result) {
  if (!result.contains("eval_loss")) return "";
  const auto loss = [&](const char* key) { return result.at(key).is_number() ? result.at(key).get<double>() : NAN; };
  const bool has_first = result.contains("first_eval_loss");
  return fmt::format("{} {} after step {}", has_first ? held_out_before(loss("first_eval_loss")) + "," : "held-out loss",
                     format_number(loss("eval_loss"), 6), result.at("steps").get<std::uint64_t>());
}

// Throws if the data of a resumed run has changed. Records what the data is now.
void demand_same_content(DataContent& content, RunDir& dir, const RunConfig& config) {
  if (dir.resume) {
    const auto changed = content.difference(dir.data_content);
    if (!changed.empty() && !config.run.force)
      throw base::Refused(
          fmt::format("the data of the run in {} has changed since it began: {} has other bytes, as many as before\n  "
                      "restore the data, or give another --out-dir; --force resumes it with the new data",
                      dir.path.string(), changed));
    if (!content.doubt().empty())
      base::warn(fmt::format(
          "{} looks written to since the run in {} began; a sample of its bytes is the same, and the others are not "
          "compared",
          content.doubt(), dir.path.string()));
  }
  dir.data_content = content.record();
}

// One rank's training, from its engine to the run's result.
class Training {
 public:
  Training(const RunConfig& config, const AgreedPlan& agreed, RunData& data, RunDir& dir, Team& team)
      : config_(config),
        agreed_(agreed),
        data_(data),
        dir_(dir),
        team_(team),
        pool_(make_pool(config)),
        device_(make_device(config, pool_, recorded_algorithms(dir))),
        optimizer_(optimizer_of(config, *device_)),
        between_gpus_(communicator_of_gpus()),
        engine_(agreed.model(), agreed.plan(),
                {.device = device_.get(),
                 .store = dir.store,
                 .resume = dir.resume,
                 .reshard_from = dir.reshard_from,
                 .optimizer = optimizer_.get(),
                 .communicator = between_gpus_ ? between_gpus_.get() : team.communicator(),
                 .trace = &trace_}),
        trainer_(begin()),
        log_(dir.path, team.rank()),
        screen_(log_.screen(screen_options(config.run.json, done(), last_))) {}

  Exit run() {
    const bool all_done = done() >= last_;  // only the result is printed again
    note_start(screen_, config_, agreed_, dir_, team_, {done(), moved_from_});
    metrics_.emplace(metrics_sinks(config_.run, dir_.path, dir_.path / log_.metrics_file(), team_.first(), done()));
    note_missing_steps();
    if (team_.first())
      for (const auto& note : data_.notes()) screen_.note(note);
    if (team_.first())
      for (const auto& warning : data_.warnings()) screen_.warn(warning);
    auto planned = agreed_.to_json(team_);
    add_warnings(planned);
    if (team_.first()) write_json(dir_.path / kPlanFile, planned);

    if (!all_done) keeper_.copy_last_commit();
    const auto stopped = train_steps();

    if (commits() && !all_done) commit();
    keeper_.drop_copy();
    if (!commits()) keep_choices();
    if (!all_done) write_trace();
    return done() < last_ || is_signal(stopped) ? interrupted(stopped) : finish(all_done);
  }

 private:
  // The loop. Returns 0 if it ended with the last evaluation, or else why it ended before: kStop and the signal, or kNoData.
  std::uint64_t train_steps() {
    if (config_.train.eval_first && config_.train.eval_batches > 0 && done() == 0) {
      first_evaluation_ = evaluate();
      if (!first_evaluation_) return wish_of_a_rank();
      if (first_evaluation_->loss) screen_.note(held_out_before(*first_evaluation_->loss));
    }
    while (done() < last_) {
      static_cast<void>(trainer_.read());
      const auto wish = wish_of_a_rank();
      if (wish > kCommit) return wish;
      if (wish == kCommit) commit_now();
      const auto begin = now_ns();
      const auto steps = step_of(trainer_, config_, dir_);
      trace_.span({"step", fmt::format("step {}", done()), begin, now_ns()});
      if (begun_) {
        commit_s_ += steps.back().commit_s;
        after_commit();
      }

      auto m = show_all_but_last(steps);
      const bool evaluates = config_.train.eval_batches > 0 &&
                             (done() == last_ || due(done(), static_cast<std::uint64_t>(config_.train.eval_interval)));
      if (evaluates && (evaluation_ = evaluate())) {
        m.eval_loss = evaluation_->loss;
        m.held_out = evaluation_->of_sources;
      }
      show(m);  // before the commit, so that every committed step has its line
      if (evaluates && !evaluation_) return wish_of_a_rank();
      if (evaluates && evaluation_->loss) demand_finite(*evaluation_->loss, done(), config_, dir_);
      if (due(done(), commit_interval(config_)) && done() != last_) begin_commit();
      if (done() != last_) trace_.forget_before(begin);  // the report shows the last two steps
    }
    return 0;
  }

  // Begins the run: from here on its directory changes.
  Trainer begin() {
    team_.together([&] {
      if (team_.speaks_for_process()) catch_stop_signals();  // from here on a stop must commit
      auto resolved = config_;
      if (request().pipeline) resolved.parallel.stage_layers = stage_layers(*request().pipeline);
      if (team_.first()) warn_of_other_bits(dir_, resolved);
      keeper_.demand_room();
      moved_from_ = std::exchange(dir_.machines, team_.machines());
      if (team_.first()) begin_run(dir_, resolved);
      if (team_.first() && !agreed_.found_schedule().empty()) record(dir_, kScheduleFile, agreed_.found_schedule());
    });
    engine_.set_run_id(dir_.run_id);
    if (config_.found.local_rank == 0) remove_former_stores(dir_, static_cast<std::size_t>(team_.size()));
    keeper_.begin();
    if (!dir_.resume) engine_.fill(agreed_.first_weights());
    return trainer_of(engine_, trainer_options(config_, data_, team_.agreement()), dir_);
  }

  [[nodiscard]] const PlanRequest& request() const { return agreed_.request(); }
  [[nodiscard]] bool commits() const { return request().commits; }
  [[nodiscard]] std::uint64_t done() const { return trainer_.done(); }  // finished steps

  // GPU memory is exchanged with NCCL; everything else goes through the team's communicator.
  [[nodiscard]] std::unique_ptr<Communicator> communicator_of_gpus() const {
    if (team_.size() == 1 || device_->computes_on_host()) return nullptr;
    return make_nccl_communicator(*team_.communicator(), *device_);
  }

  // All ranks commit or stop after the same step, whichever rank got a signal or cannot read its data. The greatest wish
  // counts.
  static constexpr std::uint64_t kCommit = 1, kStop = 1000, kNoData = 2000;
  static bool is_signal(std::uint64_t wish) { return wish > kStop && wish < kNoData; }
  [[nodiscard]] std::uint64_t wish_of_a_rank() const {
    const bool asked = team_.speaks_for_process() && take_commit_request();
    const auto stop = static_cast<std::uint64_t>(stop_signal());
    return team_.max(data_.error() ? kNoData : stop != 0 ? kStop + stop : asked ? kCommit : 0);
  }

  // Shows the steps that were computed together, except the last one, which it returns because an evaluation may follow it.
  StepMetrics show_all_but_last(const std::vector<Trainer::Step>& steps) {
    StepMetrics m;
    for (const auto& step : steps) {
      m = of_team(metrics_of(engine_, trainer_, step), config_.parallel, team_);
      if (step.number == done()) break;
      show(m);
    }
    m.skipped = m.loss && !steps.back().applied && !(std::isfinite(*m.loss) && std::isfinite(m.grad_norm));
    if (m.skipped)
      screen_.note(fmt::format(
          "step {} was skipped: loss {}, gradient norm {}{}", done(), *m.loss, m.grad_norm,
          trainer_.loss_scale().dynamic() ? fmt::format(", loss scale now {}", trainer_.loss_scale().value()) : ""));
    return m;
  }
  void show(StepMetrics m) {
    m.commit_s = std::exchange(commit_s_, 0);
    if (m.step == 1 && first_evaluation_) m.first_eval_loss = first_evaluation_->loss;
    m.epochs = data_.epochs(m.step * trainer_.tokens_a_step() / static_cast<std::uint64_t>(config_.model.seq_len));
    metrics_->write(m);
    screen_.step(m);
  }
  void note_missing_steps() {
    if (!team_.first() || done() == 0) return;
    if (const auto missing = missing_steps(dir_.path / kMetricsFile, done()); !missing.empty())
      screen_.warn(fmt::format("{} has no line of {}: the report leaves a gap, and training needs none of them",
                               (dir_.path / kMetricsFile).string(), missing));
  }

  // Returns nothing if a rank cannot read its data, or has got a stop signal.
  std::optional<RunData::HeldOut> evaluate() {
    const auto losses = trainer_.evaluate_each(evaluated_batches(config_));
    if (!losses) return std::nullopt;
    return data_.held_out(*losses);
  }
  // Reads the evaluation of a run that ended after its last commit from the line of its last step. If a signal stopped the run
  // before that evaluation, evaluates now.
  std::optional<RunData::HeldOut> recall_evaluation() {
    std::optional<RunData::HeldOut> evaluation;
    if (team_.first())
      each_step(dir_.path / kMetricsFile, [&](const StepMetrics& m) {
        if (m.step == done() && m.eval_loss) evaluation = {m.eval_loss, m.held_out};
        return true;
      });
    if (config_.train.eval_batches > 0 && !team_.any(evaluation.has_value())) evaluation = evaluate();
    return evaluation;
  }

  // A resumed run reads its first evaluation from the line of the first step.
  [[nodiscard]] std::optional<double> first_evaluation() const {
    if (first_evaluation_) return first_evaluation_->loss;
    std::optional<double> first;
    if (team_.first())
      each_step(dir_.path / kMetricsFile, [&](const StepMetrics& m) {
        first = m.first_eval_loss;
        return false;
      });
    return first;
  }

  // Commits for SIGUSR1, unless there is only one generation: then the next step would overwrite the commit.
  void commit_now() {
    if (!commits() || dir_.store.generations == 1)
      return screen_.note(
          fmt::format("SIGUSR1: with --durability {} nothing is committed before the end", word_of(config_.run.durability)));
    noted_ = done();
    if (committed_ == noted_)
      note_commit();
    else if (begun_ != noted_)
      begin_commit();
  }
  // The next step is computed while the commit is written, and then ends the commit. With --durability step the run waits here,
  // because a kill must not cost a finished step.
  void begin_commit() {
    finish_commit();
    const auto begin = now_ns();
    keep_choices();
    if (config_.run.durability != Durability::off) metrics_->sync();
    keeper_.finish_copy();
    trainer_.begin_commit();
    begun_ = done();
    commit_s_ += 1e-9 * static_cast<double>(now_ns() - begin);
    if (config_.run.durability == Durability::step) finish_commit();
  }
  void finish_commit() {
    if (!begun_) return;
    const auto begin = now_ns();
    trainer_.finish_commit();
    commit_s_ += 1e-9 * static_cast<double>(now_ns() - begin);
    after_commit();
  }
  void commit() {
    if (begun_ != done()) begin_commit();
    finish_commit();
  }
  // Called when the last begun commit is on the disk.
  void after_commit() {
    committed_ = std::exchange(begun_, std::nullopt);
    keeper_.remove_oldest();
    if (committed_ != last_) keeper_.copy_last_commit();
    if (team_.first() && !std::exchange(recorded_, true)) record_first_commit(dir_, resumed_id());
    if (noted_ == committed_) note_commit();
  }
  [[nodiscard]] std::optional<std::string> resumed_id() const {
    const auto resumed = engine_.resumed();
    return resumed ? std::optional(resumed->run_id) : std::nullopt;
  }
  void note_commit() {
    screen_.note(fmt::format("committed after step {}, because of SIGUSR1", *std::exchange(noted_, std::nullopt)));
  }
  // Keeps the algorithms that the device's math chose, because they change the bits: in the run directory for a resumed run, in
  // the machine profile for new runs.
  void keep_choices() const {
    if (!team_.first()) return;
    const auto chosen = device_->math().algorithms();
    record_algorithms(dir_, chosen);
    keep_algorithms(config_, chosen);
  }
  void write_trace() {
    const auto rank = static_cast<std::uint32_t>(team_.rank());
    const bool first_of_stage = request().pipeline && agreed_.mesh().index(rank, kAllRanks - Axis::pp) == 0;
    if (team_.first() || first_of_stage) tell([&] { base::replace_trace(trace_, trace_file_of(dir_.path, rank)); });
  }
  // Failing to write the trace or the report is only a warning: the run has finished.
  void tell(const std::function<void()>& make) try { make(); } catch (const std::exception& error) {
    screen_.warn(describe(error));
  }

  Exit interrupted(std::uint64_t stopped) {
    demand_data();
    const auto what = fmt::format("stopped by {} after step {}", describe_stop(static_cast<int>(stopped - kStop)), done());
    if (!commits()) throw Error(what + "; nothing is kept with --durability none");
    screen_.note(fmt::format("{}; continue with: {}", what, command_to_resume(dir_.path, team_.size())));
    return Exit::interrupted;
  }

  Exit finish(bool all_done) {
    const auto hash = lm::hash_weights(engine_);
    if (!config_.run.save.empty()) save();
    auto peak = engine_.peak_bytes();  // of the whole run with the last commit, like the peak of the plan
    if (all_done) {
      for (const auto tier : kAllTiers) peak[tier] = std::max(peak[tier], trainer_.committed_peak()[tier]);
      evaluation_ = recall_evaluation();
      const auto wish = wish_of_a_rank();
      if (config_.train.eval_batches > 0 && !team_.any(evaluation_.has_value()) && is_signal(wish)) return interrupted(wish);
    }
    demand_data();
    const auto result = result_of(hash, peak);
    if (team_.first()) {
      write_result(dir_, result);
      tell([&] { screen_.note(fmt::format("report {}", write_report(dir_.path).string())); });
      if (!config_.run.json && commits()) tell([&] { note_next(screen_, config_, dir_.path, done()); });
    }
    if (config_.run.verify_resident) verify_resident(config_, agreed_, data_, *device_, *optimizer_, dir_, screen_);
    screen_.finish(hash, result);
    return Exit::ok;
  }
  [[nodiscard]] nlohmann::json result_of(const std::string& hash, PerTier<std::uint64_t> peak) const {
    nlohmann::json result{{"steps", done()}, {"weights_xxh64", hash}, {"skipped_steps", trainer_.skipped()}};
    if (const auto chosen = device_->math().algorithms(); !chosen.empty()) result["algorithms"] = lines_of(chosen);
    add_warnings(result);
    if (evaluation_ && evaluation_->loss) result["eval_loss"] = *evaluation_->loss;
    if (evaluation_ && !evaluation_->of_sources.empty()) result["held_out"] = evaluation_->of_sources;
    if (const auto first = first_evaluation()) result["first_eval_loss"] = *first;
    if (const auto best = team_.first() ? best_evaluation(dir_.path / kMetricsFile) : std::nullopt; best && best->step < done())
      result["best_eval"] = {{"step", best->step}, {"loss", *best->eval_loss}};
    if (trainer_.loss_scale().dynamic()) result["loss_scale"] = trainer_.loss_scale().value();
    for (const auto tier : kAllTiers) peak[tier] = team_.max(peak[tier]);
    result["peak_bytes"] = {{"device", peak[Tier::device]}, {"host", peak[Tier::host]}, {"nvme", peak[Tier::disk]}};
    return result;
  }
  // Adds the warnings about the data, because result and report show them, too.
  void add_warnings(nlohmann::json& to) const {
    if (const auto warnings = data_.warnings(); !warnings.empty()) to["warnings"] = warnings;
  }
  // Every rank hands over its weights; the first one writes the file.
  void save() try {
    if (team_.first()) return lm::save_weights(engine_, config_.run.save, metadata_of_saved(config_), io_of_environment());
    engine_.visit([](const ParamSpec&, std::uint64_t, TensorView) {});
  } catch (const Error& error) {
    throw Error(fmt::format("--save: {}\n  {}", error.what(),
                            commits() ? "all steps are committed: remove the cause, and the same command with --resume auto "
                                        "saves them"
                                      : "with --durability none nothing else is kept"));
  }

  void demand_data() const {
    data_.demand(team_, [this] { return what_is_kept(); });
  }
  [[nodiscard]] std::string what_is_kept() const {
    if (commits())
      return fmt::format("the state after step {} is committed; restore the file, then continue with --resume auto", done());
    const bool saved = done() == last_ && !config_.run.save.empty();
    return saved ? "the weights are saved; with --durability none nothing else is kept"
                 : "nothing is kept with --durability none";
  }

  const RunConfig& config_;
  const AgreedPlan& agreed_;
  RunData& data_;
  RunDir& dir_;
  Team& team_;
  const std::uint64_t last_ = static_cast<std::uint64_t>(config_.train.steps);
  std::vector<int> moved_from_;  // how many ranks were on each machine before this resume
  ThreadPool pool_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Communicator> between_gpus_;
  Trace trace_;
  Engine engine_;
  CommitKeeper keeper_{config_, dir_, team_, engine_};
  Trainer trainer_;
  const RankLog log_;
  Screen screen_;
  std::optional<MetricsSinks> metrics_;
  std::optional<RunData::HeldOut> first_evaluation_;  // before the first step, with --eval-first
  std::optional<RunData::HeldOut> evaluation_;        // the last one
  double commit_s_ = 0;                               // waited for commits, not shown yet
  // Steps: of this process's last commit, of the commit that is being written, and of the one that SIGUSR1 asked for and that
  // is not reported yet.
  std::optional<std::uint64_t> committed_, begun_, noted_;
  bool recorded_ = false;  // run.json says that this start has committed
};

}  // namespace

Exit train_rank(const RunConfig& given, Team& team) {
  auto config = given;
  config.found.rank = team.rank();
  std::optional<RunData> data;
  std::optional<AgreedPlan> agreed;
  std::optional<DataContent> content;
  std::optional<RunDir> dir;
  // All checks come before the directory is touched.
  demand_own_gpus(config, team);
  team.together([&] { measure_before_first_run(config); });
  team.together([&] {
    make_token_files(config);
    if (team.first() && config.found.chooses_batch)
      config = with_chosen_batch(config, machine_profile(config), [&] { return RunData(config).sequences_of_an_epoch(); });
  });
  // One rank chooses, because the ranks have different rates.
  config.train.batch_size = static_cast<std::int64_t>(team.each(static_cast<double>(config.train.batch_size)).front());
  config.train.grad_accumulation =
      static_cast<std::int64_t>(team.each(static_cast<double>(config.train.grad_accumulation)).front());
  team.together([&] { config = with_chosen_tiles(config); });
  agree_on_tiles(config, [&](std::uint64_t tiles) { return team.max(tiles); });
  team.together([&] {
    data.emplace(config);
    set_steps_of_epochs(config, data->sequences_of_an_epoch());
    if (team.first()) content.emplace(config);
    agreed.emplace(config);
  });
  demand_same_settings(given, team);  // with the tiles that were given, not those that all ranks agreed on
  warn_of_other_bits(config, team);
  agreed->agree(team);
  team.together([&] { agreed->make(team); });
  agreed->demand_same_steps(team);
  const auto checksums = demand_tokens_of_vocabulary(config, team);
  team.together([&] { dir = team.first() ? open_run_dir(config) : rank_dir(config, team.rank()); });
  const bool asks_more = !config.run.save.empty() || config.run.verify_resident;
  if (team.any(dir->result.has_value() && !asks_more)) {
    if (!team.first()) return Exit::ok;
    Screen screen(screen_options(config.run.json, 0, 0));
    screen.note(
        fmt::format("the run in {} is finished; there is nothing to do; a greater --steps continues it", dir->path.string()));
    if (const auto text = held_out(*dir->result); !text.empty()) screen.note(text);
    screen.finish(dir->result->at("weights_xxh64").get<std::string>(), *dir->result);
    return Exit::ok;
  }
  agree_on_resume(*dir, config, team);
  if (content) content->set_checksums(checksums.empty() ? data->checksums() : checksums);
  team.together([&] {
    if (content) demand_same_content(*content, *dir, config);
  });
  return Training(config, *agreed, *data, *dir, team).run();
}

Exit train(RunConfig config) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed terminal or pipe does not stop a run
  if (config.data.files.empty()) throw base::Refused("train needs a corpus\n  give --data FILE…");
  demand_folder_of_prometheus(config.run.prometheus);
  demand_disk_folders(config);
  config.run.out_dir = config.run.resume.directory(config.run.out_dir);
  return train_ranks(std::move(config));
}

}  // namespace terrace::cli
