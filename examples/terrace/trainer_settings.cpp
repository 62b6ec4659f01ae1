#include <terrace/examples/terrace/trainer_settings.h>

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include <terrace/examples/terrace/setup.h>
#include <terrace/parallel/train/documents.h>

namespace terrace::cli {

namespace {

// Every separator ends a document, also where a sequence ends with it.
BatchReader::Read reader_of(const RunConfig& config, RunData& data) {
  return [&data, separator = static_cast<std::int32_t>(config.document_separator)](Split split, auto sequences, auto tokens,
                                                                                   auto targets) {
    if (!data.read(split, sequences, tokens, targets)) return false;
    if (separator >= 0) end_targets_at(tokens, separator, targets);
    return true;
  };
}

BatchReader::Number documents_of(const RunConfig& config) {
  if (config.document_separator < 0) return {};
  return [separator = static_cast<std::int32_t>(config.document_separator)](Split, auto sequences, auto tokens, auto numbers) {
    number_documents(tokens, tokens.size() / sequences.size(), separator, numbers);
  };
}

}  // namespace

Trainer::Options trainer_options(const RunConfig& config, RunData& data, Agreement* ranks) {
  return {.read = reader_of(config, data),
          .rate = [rate = schedule(config)](std::uint64_t step) { return rate.at(step); },
          .greatest_norm = config.grad_clip,
          .non_finite = non_finite(config),
          .loss_scale = loss_scale(config),
          .seed = config.seed,
          .ranks = ranks,
          .documents = documents_of(config)};
}

Trainer trainer_of(Engine& engine, Trainer::Options options, const RunDir& dir) try {
  return Trainer(engine, std::move(options));
} catch (const Error& error) {
  if (error.exit() != Exit::corrupt) throw;
  throw Error(fmt::format("the run in {}: {}", dir.path.string(), error.what()), Exit::corrupt);
}

std::vector<Trainer::Step> step_of(Trainer& trainer, const RunConfig& config, const RunDir& dir) try {
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
      config.grad_clip > 0 ? " or --grad-clip" : ", give --grad-clip 1"));
}

}  // namespace terrace::cli
