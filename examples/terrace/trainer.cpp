#include <terrace/examples/terrace/device.h>
#include <terrace/examples/terrace/refusal.h>
#include <terrace/examples/terrace/trainer.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <terrace/core/device.h>
#include <terrace/core/json_text.h>
#include <terrace/core/notice.h>
#include <terrace/core/profile_rates.h>
#include <terrace/core/text_file.h>
#include <terrace/core/thread_pool.h>
#include <terrace/core/trace_file.h>
#include <terrace/examples/lm/corpus.h>
#include <terrace/examples/lm/model.h>
#include <terrace/examples/lm/weights.h>
#include <terrace/examples/terrace/check_tokens.h>
#include <terrace/examples/terrace/command_line.h>
#include <terrace/examples/terrace/init_from.h>
#include <terrace/examples/terrace/metrics.h>
#include <terrace/examples/terrace/pipeline_setup.h>
#include <terrace/examples/terrace/rank_log.h>
#include <terrace/examples/terrace/ranks.h>
#include <terrace/examples/terrace/report.h>
#include <terrace/examples/terrace/run_dir.h>
#include <terrace/examples/terrace/same_settings.h>
#include <terrace/examples/terrace/screen.h>
#include <terrace/examples/terrace/setup.h>
#include <terrace/examples/terrace/stop_signal.h>
#include <terrace/examples/terrace/team.h>
#include <terrace/offload/commit_files.h>
#include <terrace/optimizers/loss_scale.h>
#include <terrace/parallel/comm/nccl.h>
#include <terrace/parallel/engine.h>

namespace terrace::cli {
namespace {

// The tokens and targets of a global batch, by global sequence index, so that a batch has the same sequences however it is
// split.
struct Batch {
  std::vector<std::uint64_t> starts;
  std::vector<std::int32_t> tokens, targets;

  Batch(std::int64_t sequences, std::int64_t seq_len)
      : starts(static_cast<std::size_t>(sequences)),
        tokens(static_cast<std::size_t>(sequences * seq_len)),
        targets(tokens.size()) {}
};

class Training {
 public:
  explicit Training(const RunConfig& config)
      : config_(config),
        corpus_(lm::Corpus::open(config.data, {}, lm::token_format(config.data_format, config.vocab))),
        sequences_(lm::plan_sequences(corpus_.tokens(), static_cast<std::uint64_t>(config.seq_len))),
        model_(lm::make_model(model_config(config))),
        first_weights_(first_weights(config, model_)),
        profile_(machine_profile(config)),
        request_(plan_request(config)) {
    if (searches_schedule(config)) return;  // agree() takes it
    auto with_stages = config;
    if (config.pp > 1 && config.stage_layers.empty()) with_stages.stage_layers = stage_layers_of_run(config);
    set_pipeline(request_, with_stages, model_, profile_);
  }

  // All ranks must plan alike: they take the budgets of the rank that has least, and the rates, schedule and stages of the
  // first.
  void agree(Team& team) {
    for (double* const rate : rates_of(profile_)) *rate = team.each(*rate).front();
    if (const auto sizes = team.machines(); sizes.size() > 1)
      profile_.links.ranks_per_node = static_cast<std::uint32_t>(sizes.front());
    request_.budget.device = team.least(request_.budget.device);
    request_.budget.host = team.least(request_.budget.host);
    request_.budget.disk = team.least(request_.budget.disk);
    if (searches_schedule(config_)) agree_on_schedule(team);
    if (request_.pipeline)
      for (auto& begin : request_.pipeline->begins) begin = static_cast<std::uint32_t>(team.each(begin).front());
    request_.pipeline_rank = static_cast<std::uint32_t>(team.rank()) / request_.data.ranks;
  }
  // Throws an error if the plan does not fit. Only the first rank's times are shown, so only the first rank measures.
  void make_plan(const Team& team) {
    auto timed = config_;
    timed.assumed_costs = timed.assumed_costs || !team.first();
    plan_ = cli::make_plan(timed, model_, request_, profile_);
    if (!plan_.fits && request_.pipeline) {
      auto pool = make_pool(config_);
      static_cast<void>(plan_ranks(request_, config_, model_, profile_, pool));  // says what all stages need
    }
    if (!plan_.fits) throw refusal_error(config_, plan_);
    const auto steady = to_text(plan_.programs.steady);
    program_hash_ = checksum_of(std::as_bytes(std::span(steady)));
    plan_ = for_rank(plan_, model_, request_, profile_, data_rank(team));
  }
  // The ranks of a stage must have the same program, or their first collectives would not match.
  void demand_one_plan(Team& team) {
    const auto hashes = team.each(static_cast<double>(program_hash_ >> 11));  // what a double holds
    team.together([&] {
      for (std::size_t r = 0; r < hashes.size(); ++r)
        if (const auto of_stage = r - r % request_.data.ranks; hashes[r] != hashes[of_stage])
          throw Error(fmt::format("ranks {} and {} have planned different steps\n  give all ranks the same flags", of_stage, r),
                      Exit::usage);
    });
  }

  Exit run(RunDir& dir, Team& team) {
    auto pool = make_pool(config_);
    const auto device = make_device(config_, pool, recorded_algorithms(dir));
    const auto optimizer = optimizer_of(config_, *device);
    // GPU memory is exchanged with NCCL; everything else goes through the team's communicator.
    std::unique_ptr<Communicator> between_gpus;
    if (team.size() > 1 && !device->computes_on_host()) between_gpus = make_nccl_communicator(*team.communicator(), *device);
    Trace trace;
    Engine engine(model_, plan_,
                  {.device = device.get(),
                   .store = dir.store,
                   .resume = dir.resume,
                   .reshard_from = dir.reshard_from,
                   .optimizer = optimizer.get(),
                   .communicator = between_gpus ? between_gpus.get() : team.communicator(),
                   .trace = &trace});

    std::uint64_t done = 0;
    team.together([&] {
      if (team.speaks_for_process()) catch_stop_signals();  // from here on a stop must commit
      auto resolved = config_;
      if (request_.pipeline) resolved.stage_layers = stage_layers(*request_.pipeline);
      if (team.first()) warn_of_other_bits(dir, resolved);
      moved_from_ = std::exchange(dir.machines, team.machines());
      if (team.first()) begin_run(dir, resolved);
      if (team.first() && !found_schedule_.empty()) record(dir, kScheduleFile, found_schedule_);
    });
    if (config_.local_rank == 0) remove_former_stores(dir);
    if (dir.resume) {
      done = engine.resumed()->step;
      restore(engine.resumed()->payload, dir);
    } else {
      engine.fill(first_weights_);
    }

    const auto last = static_cast<std::uint64_t>(config_.steps);
    const bool all_done = done >= last;  // only the result is printed again
    const RankLog log(dir.path, team.rank());
    Screen screen(log.screen(screen_options(config_.json, done, last)));
    screen.note(describe());
    if (!found_schedule_.empty())
      screen.note(fmt::format("--schedule auto: {} {}, with stages of {} layers",
                              schedule_was_recorded_ ? "this run continues with its schedule," : "chose", schedule_name_,
                              stage_layers(*request_.pipeline)));
    if (dir.resume)
      screen.note(
          fmt::format("resumed after step {}; the state is in {}", done, (dir.store.paths.front() / dir.store.name).string()));
    if (team.first() && !dir.resume)
      for (const auto& warning : warnings_of(config_, model_)) screen.warn(warning);
    if (!dir.reshard_from.empty())
      screen.note(fmt::format(
          "the state of {} rank{} is redistributed to {}{}", dir.reshard_from.size(), dir.reshard_from.size() == 1 ? "" : "s",
          team.size(), config_.canonical_reduction ? "" : "; without --canonical-reduction sums may be rounded differently"));
    if (team.first() && dir.resume && dir.reshard_from.empty() && request_.data.sum_order() == SumOrder::machines &&
        !moved_from_.empty() && moved_from_ != dir.machines)
      screen.warn(fmt::format(
          "the ranks of this run were on machines of {} ranks and are now on machines of {}: gradients are added in "
          "another order, and sums may be rounded differently; --ranks-per-machine can give the former order",
          fmt::join(moved_from_, " + "), fmt::join(dir.machines, " + ")));
    MetricsWriter metrics(dir.path / log.metrics_file(), done);
    if (team.first() && done > 0)
      if (const auto missing = missing_steps(read_metrics(dir.path / kMetricsFile), done); !missing.empty())
        screen.warn(fmt::format("{} has no line of {}: the report leaves a gap, and training needs none of them",
                                (dir.path / kMetricsFile).string(), missing));
    const auto planned = planned_by(team);
    if (team.first()) write_json(dir.path / kPlanFile, planned);

    const auto commit_all = [&](std::uint64_t step) {
      if (team.first()) keep_choices(dir, *device);
      if (config_.durability != "off") metrics.sync();
      commit(engine, step);
      if (team.first() && dir.store.generations > 1) record_first_commit(dir);
    };
    const auto rate = schedule(config_);
    std::optional<double> evaluation;
    std::uint64_t stopped = 0;                       // the signal, or kNoData; 0: none
    const auto together = updates_a_step(request_);  // so many steps are computed at once; the last of them is `step`
    for (std::uint64_t step = done + together; step <= last; step += together) {
      const auto& batch = training_batch(step - together + 1);
      if ((stopped = stop_of(team)) != 0) break;
      const auto update = update_of(step, rate.at(step));
      const auto updates = together == 1 ? std::vector<UpdateStep>() : updates_of(step - together + 1, step, rate);
      const auto begin = now_ns();
      auto result = run_step(engine, batch, update, updates);
      if (config_.on_non_finite == "stop" && !overflows(result)) require_finite(step, result, dir);
      trace.span({"step", fmt::format("step {}", step), begin, now_ns()});
      const bool applied = settle(engine, update, result);
      if (config_.sync_interval > 1 && due(step, config_.sync_interval)) {
        const auto averaging = now_ns();
        engine.average();
        result.seconds += static_cast<double>(now_ns() - averaging) * 1e-9;
      }
      done = step;

      for (std::size_t u = 0; u + 1 < together; ++u) {
        const auto m = of_team(metrics_of(engine, step - together + 1 + u, part_of(result, u), updates[u].learning_rate), team);
        metrics.write(m);
        screen.step(m);
      }
      auto m = of_team(metrics_of(engine, step, part_of(result, together - 1), update.learning_rate), team);
      m.skipped = !applied;
      if (!applied)
        screen.note(fmt::format("step {} was skipped: loss {}, gradient norm {}{}", step, m.loss, m.grad_norm,
                                loss_scale_.dynamic() ? fmt::format(", loss scale now {}", loss_scale_.value()) : ""));
      if (config_.eval_batches > 0 && (step == last || due(step, config_.eval_interval))) {
        m.eval_loss = evaluation = evaluate(engine, team);
        if (!evaluation) stopped = kNoData;
      }
      metrics.write(m);  // before the commit, so that every committed step has its line
      screen.step(m);
      if (stopped == kNoData) break;
      if (due(step, static_cast<std::int64_t>(commit_interval(config_))) && step != last) commit_all(step);
      if (step != last) trace.forget_before(begin);  // the report shows the last two
    }

    if (request_.commits && !all_done) commit_all(done);
    if (team.first() && !request_.commits) keep_choices(dir, *device);
    const bool first_of_stage = request_.pipeline && static_cast<std::uint32_t>(team.rank()) % request_.data.ranks == 0;
    if (!all_done && (team.first() || first_of_stage))
      tell(screen, [&] { replace_trace(trace, trace_file_of(dir.path, static_cast<std::uint32_t>(team.rank()))); });
    if (done < last) {
      demand_data(team, done);
      const auto what = fmt::format("stopped by {} after step {}", describe_stop(static_cast<int>(stopped)), done);
      if (!request_.commits) throw Error(what + "; nothing is kept with --durability none");
      screen.note(what + "; continue with --resume auto");
      return Exit::interrupted;
    }
    const auto hash = lm::hash_weights(engine);
    if (!config_.save.empty()) save(engine, team);
    auto peak = engine.peak_bytes();  // of the whole run with the last commit, like the peak of the plan
    if (all_done) {
      for (const auto tier : kAllTiers) peak[tier] = std::max(peak[tier], committed_peak_[tier]);
      evaluation = recall_evaluation(engine, team, dir, done);
    }
    demand_data(team, done);
    nlohmann::json result{{"steps", done}, {"weights_xxh64", hash}, {"skipped_steps", skipped_}};
    if (const auto chosen = device->math().algorithms(); !chosen.empty()) result["algorithms"] = lines_of(chosen);
    if (evaluation) result["eval_loss"] = *evaluation;
    if (loss_scale_.dynamic()) result["loss_scale"] = loss_scale_.value();
    for (const auto tier : kAllTiers) peak[tier] = team.max(peak[tier]);
    result["peak_bytes"] = {{"device", peak[Tier::device]}, {"host", peak[Tier::host]}, {"nvme", peak[Tier::disk]}};
    if (team.first()) {
      write_result(dir, result);
      tell(screen, [&] { screen.note(fmt::format("report {}", write_report(dir.path).string())); });
    }
    if (config_.verify_resident) verify_resident(*device, *optimizer, dir, screen);
    screen.finish(hash, result);
    return Exit::ok;
  }

 private:
  // --schedule auto: the first rank takes the schedule that the resumed run has, or else searches, and all ranks take the same.
  void agree_on_schedule(Team& team) {
    std::string text;
    team.together([&] {
      if (!team.first()) return;
      text = found_by_run(config_);
      schedule_was_recorded_ = !text.empty();
      if (schedule_was_recorded_) return;
      auto pool = make_pool(config_);
      const auto found = search_schedule(request_, config_, model_, profile_, pool);
      text = found_to_text(found.name, *request_.pipeline);
    });
    found_schedule_ = team.of_first(std::move(text));
    schedule_was_recorded_ = team.any(schedule_was_recorded_);
    schedule_name_ = take_found(request_, model_, found_schedule_);
  }

  // Failing to write the trace or the report is only a warning: the run has finished.
  static void tell(Screen& screen, const std::function<void()>& make) try { make(); } catch (const std::exception& error) {
    screen.warn(error.what());
  }
  // Keeps the algorithms that the device's math chose, because they change the bits: in the run directory for a resumed run, in
  // the machine profile for new runs.
  void keep_choices(const RunDir& dir, Device& device) const {
    const auto chosen = device.math().algorithms();
    record_algorithms(dir, chosen);
    keep_algorithms(config_, chosen);
  }
  static bool due(std::uint64_t step, std::int64_t every) { return every > 0 && step % static_cast<std::uint64_t>(every) == 0; }

  // All ranks stop after the same step, whichever rank got a signal or cannot read its data.
  static constexpr std::uint64_t kNoData = 1000;  // above all signals
  [[nodiscard]] std::uint64_t stop_of(Team& team) const {
    return team.max(data_error_ ? kNoData : static_cast<std::uint64_t>(stop_signal()));
  }

  // Reads sequences of the corpus. If a file has changed or cannot be read, all ranks commit before the run ends, so the error
  // is kept for demand_data().
  void fill(Batch& batch) try {
    corpus_.fill(batch.starts, sequences_.seq_len, batch.tokens, batch.targets);
  } catch (const Error&) {
    data_error_ = std::current_exception();
  }
  // Called by all ranks, after the commit.
  void demand_data(Team& team, std::uint64_t done) const {
    team.together([&] {
      if (data_error_) try {
          std::rethrow_exception(data_error_);
        } catch (const Error& error) {
          throw Error(fmt::format("{}\n  {}", error.what(), what_is_kept(done)));
        }
    });
  }
  [[nodiscard]] std::string what_is_kept(std::uint64_t done) const {
    if (request_.commits)
      return fmt::format("the state after step {} is committed; restore the file, then continue with --resume auto", done);
    const bool saved = done == static_cast<std::uint64_t>(config_.steps) && !config_.save.empty();
    return saved ? "the weights are saved; with --durability none nothing else is kept"
                 : "nothing is kept with --durability none";
  }

  [[nodiscard]] std::uint32_t data_rank(const Team& team) const {
    return static_cast<std::uint32_t>(team.rank()) % request_.data.ranks;
  }

  // Skipped steps have no update, so the optimizer's step count leaves them out.
  [[nodiscard]] UpdateStep update_of(std::uint64_t step, double learning_rate) const {
    return {.step = step - skipped_,
            .learning_rate = learning_rate,
            .gradient_scale = 1.0 / loss_scale_.value(),
            .seed = config_.seed};
  }
  [[nodiscard]] std::vector<UpdateStep> updates_of(std::uint64_t first, std::uint64_t last, const Schedule& rate) const {
    std::vector<UpdateStep> all;
    for (auto step = first; step <= last; ++step) all.push_back(update_of(step, rate.at(step)));
    return all;
  }
  // Computes gradients times the loss scale; the norms in the result are without it.
  StepResult run_step(Engine& engine, const Batch& batch, const UpdateStep& update,
                      std::span<const UpdateStep> updates = {}) const {
    auto result = engine.step({.tokens = batch.tokens,
                               .targets = batch.targets,
                               .loss_scale = loss_scale_.value() / static_cast<double>(tokens_an_update()),
                               .update = update,
                               .updates = updates,
                               .greatest_norm = config_.grad_clip});
    result.gradient_norm /= loss_scale_.value();
    for (auto& norm : result.gradient_norms) norm /= loss_scale_.value();
    for (auto& norm : result.group_norms) norm /= loss_scale_.value();
    return result;
  }
  // The result of one of several steps that were computed together: its own loss and norm, an even share of time and bytes.
  static StepResult part_of(const StepResult& r, std::size_t u) {
    auto part = r;
    const auto parts = r.loss_sums.size();
    if (parts <= 1) return part;
    part.loss_sum = r.loss_sums[u];
    part.gradient_norm = r.gradient_norms[u];
    part.seconds /= static_cast<double>(parts);
    for (auto& [cause, seconds] : part.stall_s) seconds /= static_cast<double>(parts);
    for (auto* const seconds : {&part.communicated.seconds, &part.communicated.hidden_s})
      *seconds /= static_cast<double>(parts);
    for (auto* const bytes : {&part.moved.upload, &part.moved.download, &part.moved.read, &part.moved.write})
      *bytes = *bytes * (u + 1) / parts - *bytes * u / parts;
    return part;
  }
  static bool finite(const StepResult& r) {
    return std::isfinite(r.loss_sum) && std::isfinite(r.gradient_norm) &&
           std::ranges::all_of(r.gradient_norms, [](double norm) { return std::isfinite(norm); });
  }
  // Whether the gradients overflowed though the loss is finite, so that a smaller loss scale may help.
  [[nodiscard]] bool overflows(const StepResult& r) const {
    return loss_scale_.can_back_off() && std::isfinite(r.loss_sum) && !std::isfinite(r.gradient_norm);
  }
  // Decides whether the update of a step is applied, and with which clip factor.
  bool settle(Engine& engine, UpdateStep update, const StepResult& r) {
    const bool overflow = overflows(r);
    if (overflow || (!finite(r) && config_.on_non_finite == "skip")) {
      if (overflow) loss_scale_.overflowed();
      engine.skip();
      ++skipped_;
      return false;
    }
    const auto scale = [&](double norm, double greatest) { return clip_factor(norm, greatest) / loss_scale_.value(); };
    const auto& groups = request_.param_groups;
    std::vector<double> group_scales;
    if (!r.group_norms.empty())
      for (std::size_t g = 0; g < groups.size(); ++g)
        group_scales.push_back(scale(r.group_norms[g], groups[g].clip.value_or(0)));
    update.gradient_scale = scale(group_scales.empty() ? r.gradient_norm : r.group_norms.back(), config_.grad_clip);
    engine.set_pending(update, std::move(group_scales));
    loss_scale_.succeeded();
    return true;
  }
  void commit(Engine& engine, std::uint64_t step) const {
    engine.flush();  // before the peaks are read, because flushing may raise them
    engine.commit(step, payload(engine.peak_bytes()));
  }
  // What a commit has beside the state itself.
  [[nodiscard]] std::string payload(const PerTier<std::uint64_t>& peak) const {
    nlohmann::json j{{"skipped_steps", skipped_}};
    for (const auto tier : kAllTiers) j["peak_bytes"][name_of(tier)] = peak[tier];
    if (loss_scale_.dynamic())
      j["loss_scale"] = {{"value", loss_scale_.state().value}, {"good_steps", loss_scale_.state().good_steps}};
    return j.dump();
  }
  void restore(const std::string& text, const RunDir& dir) try {
    const auto payload = parse_json(text);
    skipped_ = payload.value("skipped_steps", std::uint64_t{0});
    if (const auto peak = payload.find("peak_bytes"); peak != payload.end())
      for (const auto tier : kAllTiers) committed_peak_[tier] = peak->value(name_of(tier), std::uint64_t{0});
    if (const auto at = payload.find("loss_scale"); at != payload.end())
      loss_scale_.restore(
          {.value = at->value("value", LossScale::kFirst), .good_steps = at->value("good_steps", std::uint64_t{0})});
  } catch (const std::exception&) {  // the record has a checksum, so another program wrote it
    throw Error(
        fmt::format("the commit of the run in {} has a payload that is not of terrace train\n  continue the run with the "
                    "program that wrote it",
                    dir.path.string()),
        Exit::corrupt);
  }

  static double unsigned_nan(double value) { return std::isnan(value) ? std::abs(value) : value; }  // its sign means nothing
  // A step that diverged is never committed, and not applied either if updates wait for the norm.
  void require_finite(std::uint64_t step, const StepResult& r, const RunDir& dir) const {
    if (finite(r)) return;
    const bool maybe_scale = std::isfinite(r.loss_sum) && loss_scale_.value() > 1;
    throw Error(fmt::format(
        "training diverged at step {}: loss {}, gradient norm {}\n  {}; {}lower --lr{}, or raise "
        "--warmup; --on-non-finite skip skips such steps",
        step, unsigned_nan(r.loss_sum), unsigned_nan(r.gradient_norm),
        ChunkStore::has_commit(dir.store) ? "the last commit is intact, and --resume auto continues from it"
                                          : "nothing was committed",
        maybe_scale
            ? fmt::format("the loss is finite, and --loss-scale is {:.0f}: give --loss-scale dynamic or a smaller one; or ",
                          loss_scale_.value())
            : "",
        config_.grad_clip > 0 ? " or --grad-clip" : ", give --grad-clip 1"));
  }

  [[nodiscard]] std::string describe() const {
    const auto& data = plan_.map.data;
    const auto& pipeline = plan_.map.pipeline;
    auto rank =
        data.ranks == 1 ? "" : fmt::format("rank {} of {}, process {}, ZeRO-{}: ", data.rank, data.ranks, getpid(), data.zero);
    if (pipeline.ranks > 1)
      rank = fmt::format("pipeline rank {} of {}, {}, stages of {} layers: {}", pipeline.rank, pipeline.ranks, schedule_name_,
                         stage_layers(*request_.pipeline), rank.empty() ? fmt::format("process {}: ", getpid()) : rank);
    return fmt::format(
        "{}{} with {:.1f}M parameters, {} of state ({}, {}); device {}, host {}, disk {}; updates on {}, bound by {}", rank,
        config_.model, static_cast<double>(plan_.parameters) * 1e-6, format_bytes(plan_.state_bytes), config_.optimizer,
        config_.recipe, format_bytes(plan_.capacity.device), format_bytes(plan_.capacity.host),
        plan_.capacity.commit_only ? "for commits only" : format_bytes(plan_.capacity.disk), in_words(plan_.map.update),
        plan_.binding);
  }

  // This rank's micro-batches of the step, and of the steps that are computed with it. All ranks together always have the same
  // sequences.
  const Batch& training_batch(std::uint64_t step) {
    const auto rows = config_.batch_size * config_.grad_accumulation;
    if (!batch_) batch_.emplace(rows * static_cast<std::int64_t>(updates_a_step(request_)), config_.seq_len);
    const std::uint64_t ranks = request_.data.ranks, turn = plan_.map.data.turn();
    const auto per = static_cast<std::uint64_t>(config_.batch_size);
    const auto begin = (step - 1) * static_cast<std::uint64_t>(rows) * ranks;
    for (std::uint64_t j = 0; j < batch_->starts.size(); ++j)
      batch_->starts[j] = sequences_.sequence_start(config_.seed, begin + (j / per * ranks + turn) * per + j % per);
    fill(*batch_);
    return *batch_;
  }

  // The mean loss over the first held-out sequences, always the same ones, distributed to the ranks. All ranks evaluate in
  // every round, because they gather weights together; losses after the last micro-batch do not count. Nothing if a rank cannot
  // read its data.
  std::optional<double> evaluate(Engine& engine, Team& team) {
    const std::int64_t ranks = request_.data.ranks, at_once = engine.evaluated_at_once(), per = config_.batch_size;
    Batch batch(at_once * per, config_.seq_len);
    double sum = 0;
    for (std::int64_t first = 0; first < config_.eval_batches; first += ranks * at_once) {
      for (std::int64_t j = 0; j < at_once * per; ++j) {
        const auto sequence = static_cast<std::uint64_t>((first + j / per * ranks + data_rank(team)) * per + j % per);
        batch.starts[static_cast<std::size_t>(j)] = sequences_.evaluation_start(sequence % sequences_.evaluation_sequences);
      }
      fill(batch);
      if (team.any(data_error_ != nullptr)) return std::nullopt;
      std::int64_t micro_batch = first;
      for (const double mine : engine.evaluate({.tokens = batch.tokens, .targets = batch.targets})) {
        // All ranks of a pipeline have the losses of its last stage: the first ranks are one of each data rank.
        const auto losses = team.each(mine);
        for (const double loss : std::span(losses).first(static_cast<std::size_t>(ranks)))
          if (micro_batch++ < config_.eval_batches) sum += loss;
      }
    }
    return sum / static_cast<double>(config_.eval_batches * per * config_.seq_len);
  }

  // The evaluation of a run that ended after its last commit, from the line of its last step. A run that a signal stopped after
  // the last step has no evaluation yet.
  std::optional<double> recall_evaluation(Engine& engine, Team& team, const RunDir& dir, std::uint64_t done) {
    std::optional<double> evaluation;
    if (team.first())
      if (const auto lines = read_metrics(dir.path / kMetricsFile); !lines.empty() && lines.back().step == done)
        evaluation = lines.back().eval_loss;
    if (config_.eval_batches > 0 && !team.any(evaluation.has_value())) evaluation = evaluate(engine, team);
    return evaluation;
  }

  [[nodiscard]] std::uint64_t tokens_a_step() const {
    return static_cast<std::uint64_t>(config_.batch_size * config_.grad_accumulation * config_.seq_len * config_.dp);
  }

  // The tokens of one update; with --sync-interval those of one rank.
  [[nodiscard]] std::uint64_t tokens_an_update() const {
    return config_.sync_interval > 1 ? tokens_a_step() / static_cast<std::uint64_t>(config_.dp) : tokens_a_step();
  }

  // The first rank's plan. With several ranks also the bytes that all of them move and the greatest peaks, as in the metrics.
  [[nodiscard]] nlohmann::json planned_by(Team& team) const {
    auto json = to_json(config_, plan_);
    if (team.size() == 1) return json;
    auto walked = json.at("walked").at("bytes");
    for (auto& [edge, bytes] : walked.items()) bytes = team.sum(bytes.get<std::uint64_t>());
    auto peaks = json.at("peak_bytes");
    for (auto& [tier, bytes] : peaks.items()) bytes = team.max(bytes.get<std::uint64_t>());
    const auto steps = team.each(static_cast<double>(plan_.step_traffic.size()));
    json["ranks"]["peak_bytes"] = peaks;
    if (std::ranges::min(steps) == std::ranges::max(steps)) json["ranks"]["walked_bytes"] = walked;
    return json;
  }

  // Every rank hands over its weights; the first one writes the file.
  void save(Engine& engine, const Team& team) const try {
    if (team.first()) return lm::save_weights(engine, config_.save, metadata_of_saved(config_));
    engine.visit([](const ParamSpec&, std::uint64_t, TensorView) {});
  } catch (const Error& error) {
    throw Error(fmt::format(
        "--save: {}\n  {}", error.what(),
        request_.commits ? "all steps are committed: remove the cause, and the same command with --resume auto saves them"
                         : "with --durability none nothing else is kept"));
  }

  // The first rank's metrics are those of all ranks: the greatest peaks, and the sums of the bytes. With --sync-interval
  // gradients are not summed, so the norm is the largest one.
  [[nodiscard]] StepMetrics of_team(StepMetrics m, Team& team) const {
    const auto all = m;
    for (auto* const bytes : {&m.device_peak_bytes, &m.host_peak_bytes, &m.nvme_peak_bytes}) *bytes = team.max(*bytes);
    if (config_.sync_interval > 1) m.grad_norm = std::ranges::max(team.each(m.grad_norm));
    for (auto* const bytes : {&m.read_bytes, &m.write_bytes, &m.h2d_bytes, &m.d2h_bytes}) *bytes = team.sum(*bytes);
    return team.first() ? m : all;
  }

  StepMetrics metrics_of(const Engine& engine, std::uint64_t step, const StepResult& r, double rate) const {
    StepMetrics m{.step = step, .lr = rate, .stall = {}, .eval_loss = {}};
    m.tokens = tokens_a_step();
    m.loss = r.loss_sum / static_cast<double>(m.tokens);
    m.grad_norm = r.gradient_norm;
    m.step_time_s = r.seconds;
    m.tokens_per_s = static_cast<double>(m.tokens) / r.seconds;
    const auto peak = engine.peak_bytes();
    m.device_peak_bytes = peak[Tier::device];
    m.host_peak_bytes = peak[Tier::host];
    m.nvme_peak_bytes = peak[Tier::disk];
    m.read_bytes = r.moved.read;
    m.write_bytes = r.moved.write;
    m.h2d_bytes = r.moved.upload;
    m.d2h_bytes = r.moved.download;
    m.communication_s = r.communicated.seconds;
    m.hidden_communication_s = r.communicated.hidden_s;
    m.stall = r.stall_s;
    for (const auto& [cause, seconds] : r.stall_s) m.stall_s += seconds;
    return m;
  }

  // Repeats the first steps with everything in memory. Every loss must be the same number.
  void verify_resident(Device& device, const Optimizer& optimizer, const RunDir& dir, Screen& screen) {
    constexpr std::uint64_t kSteps = 5;
    const Team alone;
    auto request = plan_request(config_);
    request.budget = {};
    request.disk_tier = false;
    const auto resident = plan(model_, request, profile_);
    if (!resident.fits) throw refusal_error(config_, resident);
    Engine engine(model_, resident,
                  {.device = &device,
                   .store = {.paths = {dir.path}, .name = "resident", .durable = false, .temporary = true},
                   .optimizer = &optimizer});
    engine.fill(first_weights_);
    std::map<std::uint64_t, StepMetrics> offloaded;  // by step, because lines may be missing
    for (const auto& m : read_metrics(dir.path / kMetricsFile)) offloaded[m.step] = m;
    skipped_ = 0;
    loss_scale_ = loss_scale(config_);
    const auto rate = schedule(config_);
    std::uint64_t same = 0, steps = 0;
    for (std::uint64_t step = 1; step <= std::min(kSteps, static_cast<std::uint64_t>(config_.steps)); ++step) {
      const auto& batch = training_batch(step);
      if (data_error_) std::rethrow_exception(data_error_);
      const auto line = offloaded.find(step);
      const bool recorded = line != offloaded.end();
      // With the recorded learning rate, because a later --steps may have changed the schedule.
      const auto update = update_of(step, recorded ? line->second.lr : rate.at(step));
      const auto r = run_step(engine, batch, update);
      settle(engine, update, r);
      const double loss = r.loss_sum / static_cast<double>(batch.targets.size());
      if (!recorded) {
        screen.warn(fmt::format("step {} has no line in {}, so it is not compared", step, kMetricsFile));
        continue;
      }
      const double other = line->second.loss;
      const bool equal = loss == other || (std::isnan(loss) && std::isnan(other));
      ++steps;
      same += equal;
      screen.note(fmt::format("step {}: offloaded {:.17g}, resident {:.17g}: {}", step, other, loss,
                              equal ? "bit-identical" : "DIFFERENT"));
    }
    if (steps == 0)
      throw Error(
          fmt::format("--verify-resident: {} has none of the first {} steps, so nothing was compared\n  repeat the run "
                      "in another --out-dir",
                      (dir.path / kMetricsFile).string(), kSteps));
    if (same != steps)
      throw Error(
          fmt::format("{} of {} losses differ between training with and without offloading\n  please report this with the "
                      "command line and {}",
                      steps - same, steps, (dir.path / kConfigFile).string()));
    screen.note(fmt::format("offloading changed nothing: {} of {} losses are bit-identical to training without offloading",
                            same, steps));
  }

  const RunConfig& config_;
  lm::Corpus corpus_;
  lm::SequencePlan sequences_;
  Model model_;
  WeightRange first_weights_;
  MachineProfile profile_;
  PlanRequest request_;
  Plan plan_;
  std::string schedule_name_ = config_.schedule;
  std::string found_schedule_;  // with --schedule auto: found_to_text()
  bool schedule_was_recorded_ = false;
  std::vector<int> moved_from_;     // how many ranks were on each machine before this resume
  std::uint64_t program_hash_ = 0;  // of the steady step, before this rank's part is taken
  std::optional<Batch> batch_;
  std::exception_ptr data_error_;  // why this rank could not read its part of the data
  LossScale loss_scale_ = loss_scale(config_);
  PerTier<std::uint64_t> committed_peak_{};  // of the run until the commit from which it resumed
  std::uint64_t skipped_ = 0;                // steps without an update, since the run began
};

}  // namespace

namespace {

// What a rank can resume from.
enum class Committed { no_store, nothing, once, more };

Committed committed(const RunDir& dir, bool something) {
  const auto home = dir.store.paths.front() / dir.store.name;
  if (!something) return std::filesystem::exists(home) ? Committed::nothing : Committed::no_store;
  // If the run reached an end before, all ranks have committed that.
  const bool may_be_alone = dir.reshard_from.empty() && !dir.has_committed && !std::filesystem::exists(dir.path / kResultFile);
  return may_be_alone && CommitFiles::only_the_first(home) ? Committed::once : Committed::more;
}

// Decides whether the run resumes. All ranks must have the commit.
void agree_on_resume(RunDir& dir, const RunConfig& config, Team& team) {
  const bool mine = team.first() ? dir.resume : !dir.reshard_from.empty() || ChunkStore::has_commit(dir.store);
  const auto all = team.each(static_cast<double>(committed(dir, mine)));
  const auto least = static_cast<Committed>(std::ranges::min(all)), most = static_cast<Committed>(std::ranges::max(all));
  const bool here = static_cast<Committed>(all.front()) >= Committed::once;
  // A rank died during the first commit of the run. No rank continues before all have a commit, so the run can only start
  // again.
  const bool anew = here && least == Committed::nothing && most == Committed::once;
  if (anew && team.first())
    warn(fmt::format("a rank of the run in {} ended during the first commit, which is incomplete: the run starts again",
                     dir.path.string()));
  const bool wanted = here && !anew;
  team.together([&] {
    if (!here && most == Committed::more && mine && dir.store.generations > 1)
      throw Error(
          fmt::format("rank {} of the run in {} has a commit in its store {}, but rank 0 has none; starting again would "
                      "overwrite it\n  bring the store of rank 0 back; or, to give the run up, remove the stores of all "
                      "ranks (terrace ckpt rm)",
                      team.rank(), dir.path.string(), dir.store.name),
          Exit::corrupt);
    if (wanted && !mine)
      throw Error(
          fmt::format(
              "rank {} of the run in {} has no commit, but rank 0 has one\n  restore its store {}, or start a new run in "
              "another --out-dir",
              team.rank(), dir.path.string(), dir.store.name),
          Exit::corrupt);
  });
  dir.resume = wanted;
  if (wanted) return;
  dir.has_committed = false;
  dir.reshard_from.clear();
  dir.store = store_options(config);
  dir.store.name = store_name_of_rank(dir.store.name, static_cast<std::size_t>(team.rank()));
}

}  // namespace

Exit train_rank(const RunConfig& given, Team& team) {
  auto config = given;
  std::optional<Training> training;
  std::optional<RunDir> dir;
  // All checks come before the directory is touched.
  team.together([&] { training.emplace(config); });
  demand_same_settings(config, team);
  warn_of_other_bits(config, team);
  training->agree(team);
  team.together([&] { training->make_plan(team); });
  training->demand_one_plan(team);
  demand_tokens_of_vocabulary(config, team);
  team.together([&] { dir = team.first() ? open_run_dir(config) : rank_dir(config, team.rank()); });
  const bool asks_more = !config.save.empty() || config.verify_resident;
  if (team.any(dir->result.has_value() && !asks_more)) {
    if (!team.first()) return Exit::ok;
    Screen screen(screen_options(config.json, 0, 0));
    screen.note(
        fmt::format("the run in {} is finished; there is nothing to do; a greater --steps continues it", dir->path.string()));
    screen.finish(dir->result->at("weights_xxh64").get<std::string>(), *dir->result);
    return Exit::ok;
  }
  agree_on_resume(*dir, config, team);
  return training->run(*dir, team);
}

Exit train(RunConfig config) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed terminal or pipe does not stop a run
  if (config.data.empty()) throw Error("train needs a corpus\n  give --data FILE…", Exit::usage);
  if (config.resume != "auto" && config.resume != "never") config.out_dir = config.resume;
  return train_ranks(std::move(config));
}

}  // namespace terrace::cli
