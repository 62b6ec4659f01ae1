// The sets of ranks that exchange something with each other, and a communicator for each.
//
//   world       all ranks of the run: losses
//   data        the ranks with the same layers, and the same part of them: sums that are not sharded
//   sharers     of them, those that share one replica of the state: gathers and reductions of groups
//   copies      of them, those that hold the same shard of the other replicas
//   turns       the data ranks in the order in which micro-batches are folded (DataParallel::turn())
//   pipeline    the ranks with the same micro-batches: messages between stages
//   tensor      the ranks that compute the same layers for the same micro-batches: parts of activations
//   twins       of them, neighbours that hold the same part of some parameters: their gradients
//   model       the ranks of all stages and all parts, with the same micro-batches: losses of an evaluation
//   replica     the ranks that together hold one replica of the state: squares of gradients
//   directions  in an order in two directions, all ranks that hold the same stage, in folding order
//
// Owner:   an engine; borrows the communicator of all ranks and makes the others.
// Threads: as a communicator. The constructor is collective.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <terrace/parallel/comm/communicator.h>
#include <terrace/parallel/data_parallel.h>
#include <terrace/parallel/pipeline_parallel.h>
#include <terrace/parallel/tensor_parallel.h>

namespace terrace {

enum class RankSet : std::uint8_t {
  world,
  data,
  sharers,
  copies,
  turns,
  pipeline,
  replica,
  directions,
  tensor,
  twins,
  model,
};

// A rank's place: its share of the data, its stage, and its part of the layers.
struct RankPlace {
  const DataParallel& data;
  const PipelineParallel& pipeline;
  const TensorParallel& tensor;

  [[nodiscard]] std::uint32_t ranks() const { return pipeline.ranks * data.ranks * tensor.ranks; }  // of the run
  [[nodiscard]] std::uint32_t rank() const { return (pipeline.rank * data.ranks + data.rank) * tensor.ranks + tensor.rank; }
};

// Of the ranks of one run: how many a set has, and how far apart they are in the run's numbering. `layer`: of directions.
struct RankSpan {
  std::uint32_t ranks = 1, stride = 1;
};
RankSpan span_of(RankSet set, const RankPlace& place, std::uint32_t layer = 0);
// Which of the sets of that kind has the rank.
std::uint32_t number_of(RankSet set, const RankPlace& place, std::uint32_t layer = 0);

class Groups {
 public:
  // `world` may be null for a run of one rank.
  Groups(Communicator* world, const RankPlace& place);
  // Null if this rank is alone in the set.
  [[nodiscard]] Communicator* find(RankSet set, std::uint32_t stage = 0) const;
  [[nodiscard]] Communicator& of(RankSet set, std::uint32_t stage = 0) const;

 private:
  std::unique_ptr<Communicator> split(RankSet set, const RankPlace& place, const char* name);
  void split_data(const DataParallel& data);
  void split_directions(const DataParallel& data, const PipelineParallel& pipeline);

  Communicator* world_;
  Communicator* data_ = nullptr;
  std::unique_ptr<Communicator> own_data_, sharers_, copies_, turns_, pipeline_, replica_, own_tensor_, twins_, own_model_;
  Communicator *tensor_ = nullptr, *model_ = nullptr;
  std::vector<std::unique_ptr<Communicator>> directions_;  // null where this rank does not hold the stage
};

}  // namespace terrace
