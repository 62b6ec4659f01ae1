#include <terrace/parallel/train/deal.h>

namespace terrace::training {

Deal Deal::of(const StepMap& map) {
  const auto& data = map.data();
  return {.rows = static_cast<std::uint64_t>(map.options().shape.batch.batch),
          .micro_batches = map.rounds().every,
          .together = map.rounds().updates(),
          .ranks = data.with_sequences(),
          .rank = map.mesh().index(map.rank(), kBatchAxes),
          .turn = data.turn,
          .context = data.context,
          .slice = map.mesh().coordinate(map.rank(), Axis::context)};
}

std::vector<std::uint64_t> Deal::of_steps(std::uint64_t step) const {
  const auto begin = (step - 1) * micro_batches * rows * ranks;
  std::vector<std::uint64_t> sequences(rows * micro_batches * together);
  for (std::uint64_t j = 0; j < sequences.size(); ++j) sequences[j] = begin + (j / rows * ranks + turn) * rows + j % rows;
  return sequences;
}

// In rank order: an evaluation folds no gradients, so it needs no turns.
std::vector<std::uint64_t> Deal::of_evaluation(std::uint64_t first, std::uint64_t count) const {
  std::vector<std::uint64_t> sequences(rows * count);
  for (std::uint64_t j = 0; j < sequences.size(); ++j) sequences[j] = (first + j / rows * ranks + rank) * rows + j % rows;
  return sequences;
}

}  // namespace terrace::training
