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
#include <terrace/parallel/comm/nccl.h>
#include <terrace/parallel/engine.h>
#include <terrace/parallel/train/trainer.h>

namespace terrace::cli {
namespace {

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
    request_.rank = static_cast<std::uint32_t>(team.rank());
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
    plan_ = for_rank(plan_, model_, request_, profile_);
  }
  // The ranks of a stage must have the same program, or their first collectives would not match.
  void demand_one_plan(Team& team) {
    const auto hashes = team.each(static_cast<double>(program_hash_ >> 11));  // what a double holds
    const auto ranks_of_stage = mesh_of(model_, request_).stride(Axis::pp);
    team.together([&] {
      for (std::size_t r = 0; r < hashes.size(); ++r)
        if (const auto of_stage = r - r % ranks_of_stage; hashes[r] != hashes[of_stage])
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
    if (!dir.resume) engine.fill(first_weights_);
    auto trainer = trainer_of(engine, team, dir);
    const auto done = [&] { return trainer.done(); };

    const auto last = static_cast<std::uint64_t>(config_.steps);
    const bool all_done = done() >= last;  // only the result is printed again
    const RankLog log(dir.path, team.rank());
    Screen screen(log.screen(screen_options(config_.json, done(), last)));
    screen.note(describe());
    if (!found_schedule_.empty())
      screen.note(fmt::format("--schedule auto: {} {}, with stages of {} layers",
                              schedule_was_recorded_ ? "this run continues with its schedule," : "chose", schedule_name_,
                              stage_layers(*request_.pipeline)));
    if (dir.resume)
      screen.note(fmt::format("resumed after step {}; the state is in {}", done(),
                              (dir.store.paths.front() / dir.store.name).string()));
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
    MetricsWriter metrics(dir.path / log.metrics_file(), done());
    if (team.first() && done() > 0)
      if (const auto missing = missing_steps(read_metrics(dir.path / kMetricsFile), done()); !missing.empty())
        screen.warn(fmt::format("{} has no line of {}: the report leaves a gap, and training needs none of them",
                                (dir.path / kMetricsFile).string(), missing));
    const auto planned = planned_by(team);
    if (team.first()) write_json(dir.path / kPlanFile, planned);

    const auto commit_all = [&] {
      if (team.first()) keep_choices(dir, *device);
      if (config_.durability != "off") metrics.sync();
      trainer.commit();
      if (team.first() && dir.store.generations > 1) record_first_commit(dir);
    };
    std::optional<double> evaluation;
    std::uint64_t stopped = 0;  // the signal, or kNoData; 0: none
    while (done() < last) {
      static_cast<void>(trainer.read());
      if ((stopped = stop_of(team)) != 0) break;
      const auto begin = now_ns();
      const auto steps = step_of(trainer, dir);
      trace.span({"step", fmt::format("step {}", done()), begin, now_ns()});

      StepMetrics m;
      for (const auto& step : steps) {
        m = of_team(metrics_of(engine, trainer, step), team);
        if (step.number == done()) break;  // it may be followed by an evaluation
        metrics.write(m);
        screen.step(m);
      }
      m.skipped = !steps.back().applied;
      if (m.skipped)
        screen.note(fmt::format(
            "step {} was skipped: loss {}, gradient norm {}{}", done(), m.loss, m.grad_norm,
            trainer.loss_scale().dynamic() ? fmt::format(", loss scale now {}", trainer.loss_scale().value()) : ""));
      if (config_.eval_batches > 0 && (done() == last || due(done(), config_.eval_interval))) {
        m.eval_loss = evaluation = evaluate(trainer);
        if (!evaluation) stopped = kNoData;
      }
      metrics.write(m);  // before the commit, so that every committed step has its line
      screen.step(m);
      if (stopped == kNoData) break;
      if (due(done(), static_cast<std::int64_t>(commit_interval(config_))) && done() != last) commit_all();
      if (done() != last) trace.forget_before(begin);  // the report shows the last two
    }

    if (request_.commits && !all_done) commit_all();
    if (team.first() && !request_.commits) keep_choices(dir, *device);
    const bool first_of_stage = request_.pipeline && mesh_of(model_, request_).index(request_.rank, kAllRanks - Axis::pp) == 0;
    if (!all_done && (team.first() || first_of_stage))
      tell(screen, [&] { replace_trace(trace, trace_file_of(dir.path, static_cast<std::uint32_t>(team.rank()))); });
    if (done() < last) {
      demand_data(team, done());
      const auto what = fmt::format("stopped by {} after step {}", describe_stop(static_cast<int>(stopped)), done());
      if (!request_.commits) throw Error(what + "; nothing is kept with --durability none");
      screen.note(what + "; continue with --resume auto");
      return Exit::interrupted;
    }
    const auto hash = lm::hash_weights(engine);
    if (!config_.save.empty()) save(engine, team);
    auto peak = engine.peak_bytes();  // of the whole run with the last commit, like the peak of the plan
    if (all_done) {
      for (const auto tier : kAllTiers) peak[tier] = std::max(peak[tier], trainer.committed_peak()[tier]);
      evaluation = recall_evaluation(trainer, team, dir);
    }
    demand_data(team, done());
    nlohmann::json result{{"steps", done()}, {"weights_xxh64", hash}, {"skipped_steps", trainer.skipped()}};
    if (const auto chosen = device->math().algorithms(); !chosen.empty()) result["algorithms"] = lines_of(chosen);
    if (evaluation) result["eval_loss"] = *evaluation;
    if (trainer.loss_scale().dynamic()) result["loss_scale"] = trainer.loss_scale().value();
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
  bool read(Split split, std::span<const std::uint64_t> sequences, std::span<std::int32_t> tokens,
            std::span<std::int32_t> targets) try {
    std::vector<std::uint64_t> starts;
    for (const auto sequence : sequences)
      starts.push_back(split == Split::training ? sequences_.sequence_start(config_.seed, sequence)
                                                : sequences_.evaluation_start(sequence % sequences_.evaluation_sequences));
    corpus_.fill(starts, sequences_.seq_len, tokens, targets);
    return data_error_ == nullptr;
  } catch (const Error&) {
    data_error_ = std::current_exception();
    return false;
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

  [[nodiscard]] Trainer::Options trainer_options(Agreement* ranks) {
    return {.read = [this](Split split, auto sequences, auto tokens,
                           auto targets) { return read(split, sequences, tokens, targets); },
            .rate = [rate = schedule(config_)](std::uint64_t step) { return rate.at(step); },
            .greatest_norm = config_.grad_clip,
            .non_finite = non_finite(config_),
            .loss_scale = loss_scale(config_),
            .seed = config_.seed,
            .ranks = ranks};
  }
  Trainer trainer_of(Engine& engine, Team& team, const RunDir& dir) try {
    return Trainer(engine, trainer_options(team.agreement()));
  } catch (const Error& error) {
    if (error.exit() != Exit::corrupt) throw;
    throw Error(fmt::format("the run in {}: {}", dir.path.string(), error.what()), Exit::corrupt);
  }

  // A step that diverged is never committed, and not applied either if updates wait for the norm.
  std::vector<Trainer::Step> step_of(Trainer& trainer, const RunDir& dir) const try {
    return trainer.step();
  } catch (const Diverged& at) {
    const bool maybe_scale = std::isfinite(at.loss) && at.loss_scale > 1;
    throw Error(fmt::format(
        "training diverged at step {}: loss {}, gradient norm {}\n  {}; {}lower --lr{}, or raise "
        "--warmup; --on-non-finite skip skips such steps",
        at.step, at.loss, at.norm,
        ChunkStore::has_commit(dir.store) ? "the last commit is intact, and --resume auto continues from it"
                                          : "nothing was committed",
        maybe_scale
            ? fmt::format("the loss is finite, and --loss-scale is {:.0f}: give --loss-scale dynamic or a smaller one; or ",
                          at.loss_scale)
            : "",
        config_.grad_clip > 0 ? " or --grad-clip" : ", give --grad-clip 1"));
  }

  [[nodiscard]] std::string describe() const {
    const auto& data = plan_.map.data;
    const auto mesh = mesh_of(model_, request_);
    const auto data_rank = mesh.index(plan_.map.rank, kDataAxes), stage = mesh.coordinate(plan_.map.rank, Axis::pp);
    auto rank =
        data.ranks == 1 ? "" : fmt::format("rank {} of {}, process {}, ZeRO-{}: ", data_rank, data.ranks, getpid(), data.zero);
    if (mesh.pp > 1)
      rank = fmt::format("pipeline rank {} of {}, {}, stages of {} layers: {}", stage, mesh.pp, schedule_name_,
                         stage_layers(*request_.pipeline), rank.empty() ? fmt::format("process {}: ", getpid()) : rank);
    if (model_.tensor.ranks > 1)
      rank = fmt::format("tensor rank {} of {}{}, {}", model_.tensor.rank, model_.tensor.ranks,
                         model_.tensor.sequence ? " with sequence parallelism" : "",
                         rank.empty() ? fmt::format("process {}: ", getpid()) : rank);
    return fmt::format(
        "{}{} with {:.1f}M parameters, {} of state ({}, {}); device {}, host {}, disk {}; updates on {}, bound by {}", rank,
        config_.model, static_cast<double>(plan_.parameters) * 1e-6, format_bytes(plan_.state_bytes), config_.optimizer,
        config_.recipe, format_bytes(plan_.capacity.device), format_bytes(plan_.capacity.host),
        plan_.capacity.commit_only ? "for commits only" : format_bytes(plan_.capacity.disk), in_words(plan_.map.update),
        plan_.binding);
  }

  std::optional<double> evaluate(Trainer& trainer) const {
    return trainer.evaluate(static_cast<std::uint64_t>(config_.eval_batches));
  }

  // The evaluation of a run that ended after its last commit, from the line of its last step. A run that a signal stopped after
  // the last step has no evaluation yet.
  std::optional<double> recall_evaluation(Trainer& trainer, Team& team, const RunDir& dir) {
    std::optional<double> evaluation;
    if (team.first())
      if (const auto lines = read_metrics(dir.path / kMetricsFile); !lines.empty() && lines.back().step == trainer.done())
        evaluation = lines.back().eval_loss;
    if (config_.eval_batches > 0 && !team.any(evaluation.has_value())) evaluation = evaluate(trainer);
    return evaluation;
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

  static StepMetrics metrics_of(const Engine& engine, const Trainer& trainer, const Trainer::Step& step) {
    const auto& r = step.result;
    StepMetrics m{.step = step.number, .lr = step.learning_rate, .stall = {}, .eval_loss = {}};
    m.tokens = trainer.tokens_a_step();
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
    if (has_other_bits(dir, config_))
      throw Error(
          fmt::format("--verify-resident: the run in {} was computed with {}, and this processor would compute its first "
                      "steps with other bits\n  repeat the run in another --out-dir, or compare it where it was computed",
                      dir.path.string(), dir.computed_with),
          Exit::usage);
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
    auto options = trainer_options(nullptr);
    // With the recorded learning rate, because a later --steps may have changed the schedule.
    options.rate = [&, rate = schedule(config_)](std::uint64_t step) {
      const auto line = offloaded.find(step);
      return line == offloaded.end() ? rate.at(step) : line->second.lr;
    };
    Trainer trainer(engine, std::move(options));
    std::uint64_t same = 0, steps = 0;
    for (std::uint64_t step = 1; step <= std::min(kSteps, static_cast<std::uint64_t>(config_.steps)); ++step) {
      if (!trainer.read()) std::rethrow_exception(data_error_);
      const auto r = step_of(trainer, dir).back().result;
      const auto line = offloaded.find(step);
      const bool recorded = line != offloaded.end();
      const double loss = r.loss_sum / static_cast<double>(trainer.tokens_a_step());
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
  std::exception_ptr data_error_;   // why this rank could not read its part of the data
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
  config.tensor_rank = team.rank() % config.tp;  // the innermost axes of the mesh
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
