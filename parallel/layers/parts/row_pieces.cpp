#include <terrace/parallel/layers/parts/row_pieces.h>

#include <algorithm>

namespace terrace::layers {

RowPieces::RowPieces(CallSteps& steps, const std::string& name, DType dtype, const TensorParallel& tensor, std::int64_t rows,
                     std::int64_t width, bool in_turn)
    : ranks_(tensor.ranks), rows_(rows), width_(width), count_(tensor.pieces) {
  for (std::uint32_t i = 0; i < count_; ++i) {
    own_.push_back(steps.room(name + ", a piece of this rank's rows", dtype));
    steps.reserve(own_.back(), elements(i));
  }
  for (std::uint32_t i = 0; i < (in_turn ? std::min(count_, 2U) : count_); ++i) {
    all_.push_back(steps.room(name + ", a piece of all ranks' rows", dtype));
    steps.reserve(all_.back(), elements(i) * ranks_);
  }
}

void RowPieces::gather(CallSteps& steps, Half half, std::uint32_t piece) const {
  if (!shared() || piece >= count_) return;
  steps.exchange(half, {.members = mesh::kTensorRanks,
                        .from = own(piece),
                        .to = all(piece),
                        .sent = {elements(piece)},
                        .received = {elements(piece) * ranks_},
                        .operation = comm::Operation::all_gather});
}

void RowPieces::scatter(CallSteps& steps, Half half, std::uint32_t piece) const {
  if (!shared() || piece >= count_) return;
  steps.exchange(half, {.members = mesh::kTensorRanks,
                        .from = all(piece),
                        .to = own(piece),
                        .sent = {elements(piece) * ranks_},
                        .received = {elements(piece)},
                        .operation = comm::Operation::reduce_scatter});
}

}  // namespace terrace::layers
