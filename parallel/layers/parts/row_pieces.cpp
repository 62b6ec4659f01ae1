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
  steps.exchange(half, all_gather(mesh::kTensorRanks, own(piece), all(piece), elements(piece), ranks_));
}

void RowPieces::scatter(CallSteps& steps, Half half, std::uint32_t piece) const {
  if (!shared() || piece >= count_) return;
  steps.exchange(half, reduce_scatter(mesh::kTensorRanks, all(piece), own(piece), elements(piece), ranks_));
}

}  // namespace terrace::layers
