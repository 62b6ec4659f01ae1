#include <terrace/examples/terrace/ranks/ranks.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include <terrace/core/base/notice.h>
#include <terrace/core/base/refused.h>
#include <terrace/examples/terrace/base/launched.h>
#include <terrace/examples/terrace/plan/device.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/examples/terrace/ranks/rank_cores.h>
#include <terrace/parallel/comm/mpi/mpi.h>
#include <terrace/parallel/comm/rank_failed.h>
#include <terrace/parallel/comm/threads/run_ranks.h>
#include <terrace/parallel/layers/chain.h>
#include <terrace/parallel/mesh/degrees.h>

namespace terrace::cli {
namespace {

void share_cores(RunConfig& c, std::int64_t ranks, const std::optional<Launched>& place) {
  c.found.local_ranks = ranks;
  if (ranks <= 1) return;
  const auto cores = rank_cores(place.has_value());
  if (c.run.threads == 0) c.run.threads = usual_threads(c, cores_of_rank(cores, ranks));
  if (const auto warning = warning_of_binding(cores, ranks); warning && place && place->rank == 0) base::warn(*warning);
}

CommunicatorOptions options_of(const RunConfig& c) {
  return {.time_limit = std::chrono::seconds(c.run.rank_deadline),
          .ranks_per_machine = static_cast<int>(c.parallel.ranks_per_machine)};
}

Exit train_threads(const RunConfig& config) {
  std::atomic<Exit> ended{Exit::runtime};
  run_ranks(static_cast<int>(config.parallel.ranks()), options_of(config), [&](std::unique_ptr<Communicator> ranks) {
    try {
      Team team(std::move(ranks), false);
      auto own = config;
      own.found.local_rank = team.rank();
      const auto exit = train_rank(own, team);
      if (team.first()) ended = exit;
    } catch (const Elsewhere&) {  // the rank that failed reports the error
    }
  });
  return ended;
}

// mpirun ends with the code of the first rank that ends. A rank that only ended because another one failed must not be that
// rank.
std::atomic<bool> ended_by_another{false};
constexpr auto kLater = std::chrono::milliseconds(500);
void end_later_if_another_failed() {
  if (ended_by_another) std::this_thread::sleep_for(kLater);
}

Exit train_process(const RunConfig& config, const Launched& place) {
  std::atexit(end_later_if_another_failed);                // registered before MPI's end, so it runs after that
  auto ranks = make_mpi_communicator(options_of(config));  // an error here occurs on all ranks
  if (ranks->size() != place.ranks)
    throw Error(
        fmt::format("{} says that there are {} ranks, but MPI has {}\n  start them with the mpirun of the MPI library that "
                    "terrace uses, or with terrace launch; {}",
                    place.said_by, place.ranks, ranks->size(), describe_left_over()),
        ErrorKind::missing);
  try {
    Team team(std::move(ranks), true);
    return train_rank(config, team);
  } catch (const Elsewhere& elsewhere) {
    return exit_of(elsewhere.kind());
  } catch (const comm::RankFailed& error) {
    ended_by_another = true;
    throw Error(fmt::format("rank {}: {}{}", place.rank, kAnotherRankFailed, error.what()), error);
  } catch (const Error& error) {
    throw Error(fmt::format("rank {}: {}", place.rank, error.what()), error);
  }
}

}  // namespace

Features features_of(const RunConfig& c, const layers::Transformer& model) {
  const auto& p = c.parallel;
  auto all = layers::features_of(model);
  all.add_several(Feature::row_pieces, p.tp_overlap);
  all.add_if(p.zero != 0, Feature::sharded_state, p.zero);
  all.add_if(p.compress_gradients != Travel::whole, Feature::narrow_gradients);
  all.add_if(p.compress_weights != Travel::whole, Feature::narrow_weights);
  all.add_several(Feature::local_sgd, p.sync_interval);
  all.add_if(c.train.lora_rank != 0 || !c.train.freeze.empty(), Feature::frozen);
  all.add_several(Feature::vocab_tiles, c.model.vocab_tiles);
  all.add_several(Feature::mlp_tiles, c.model.mlp_tiles);
  all.add_several(Feature::mlp_row_tiles, c.model.mlp_row_tiles);
  all.add_several(Feature::attention_tiles, c.model.attention_tiles);
  all.add_if(optimizer_of(c)->layer_unit().has_value(), Feature::whole_matrices);
  return all;
}

layers::Transformer transformer_of_one_rank(RunConfig whole) {
  whole.parallel.tp = whole.parallel.cp = whole.parallel.ep = 1;
  whole.found.rank = whole.parallel.shard_group = 0;
  whole.parallel.sp = false;
  whole.model.vocab_tiles = whole.model.mlp_tiles = whole.model.mlp_row_tiles = whole.model.attention_tiles = 1;
  whole.parallel.tp_mode = TensorMode::line;
  whole.parallel.tp_depth = whole.parallel.tp_overlap = 1;
  return lm::transformer_of(model_config(whole));  // with the usual sizes of its family
}

namespace {

void demand_degrees_of(const RunConfig& c, int ranks) {
  const auto model = transformer_of_one_rank(c);
  const auto& p = c.parallel;
  auto degrees = degrees_of(c);
  degrees.micro_batches = static_cast<int>(p.dp * c.train.grad_accumulation);
  degrees.canonical_reduction = p.canonical_reduction;
  degrees.ring = p.cp_mode == ContextMode::both && p.cp > 1 ? static_cast<int>(p.cp_ring) : 0;
  degrees.zigzag = p.ring() > 1 && p.cp_mode != ContextMode::two_rings && model.window.is_usual();
  degrees.with = features_of(c, model);
  demand_degrees(degrees, layers::shape_of(model), ranks);
}

}  // namespace

void demand_degrees(const RunConfig& c) {
  auto alone = c;
  if (c.parallel.dp == 0) alone.parallel.shard_group = 0;  // it divides the number of data ranks, which is not known yet
  alone.parallel.dp = std::max<std::int64_t>(1, c.parallel.dp);
  demand_degrees_of(alone, static_cast<int>(alone.parallel.ranks()));
}

void demand_degrees(const RunConfig& c, int ranks) {
  demand_degrees_of(c, ranks);
  if (ranks == 1 && c.parallel.sync_interval > 1)
    throw base::Refused(
        fmt::format("--sync-interval {}: there is only one rank, so there are no weights to average\n  leave --sync-interval "
                    "out, or give --dp 2 or more",
                    c.parallel.sync_interval));
  if (ranks > 1 && c.run.verify_resident)
    throw base::Refused("--verify-resident works on one rank only\n  leave it out, and compare the losses of two runs");
}

Exit train_ranks(RunConfig config) {
  const auto place = launched();
  if (place)
    demand_launcher(*place);
  else
    demand_alone();
  const auto ranks = place ? place->ranks : config.parallel.ranks();
  if (config.parallel.dp == 0)
    config.parallel.dp =
        std::max<std::int64_t>(1, ranks / (config.parallel.pp * config.parallel.tp * config.parallel.cp * config.parallel.ep));
  try {
    demand_degrees(config, static_cast<int>(ranks));
  } catch (const Error& error) {  // validate() has accepted the degrees, so the number of ranks is what does not fit
    if (!place || std::getenv(kUnderLaunch)) throw;
    throw Error(fmt::format("{}\n  {} says that there are {} ranks; {}", error.what(), place->said_by, place->ranks,
                            describe_left_over()),
                error);
  }
  share_cores(config, place ? place->local_ranks : ranks, place);
  if (place) config.found.local_rank = place->local_rank;
  demand_device(config);
  if (place) return train_process(config, *place);
  if (ranks > 1) return train_threads(config);
  Team alone;
  return train_rank(config, alone);
}

}  // namespace terrace::cli
