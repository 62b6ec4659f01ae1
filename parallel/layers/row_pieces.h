// The rows of an activation between tensor ranks, cut into pieces: while the rows of one are multiplied, those of the next are
// gathered, or those of the one before are added up.
//
// Piece i is a run of rows of each rank's share. The rows of all ranks in it lie together, rank by rank, in one of two rooms
// that pieces use in turn; in the whole activation they are as many runs.
//
// Owner:   a value of one description of a call (grid_call.h), whose rooms it names. Threads: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <terrace/parallel/layers/grid_call.h>

namespace terrace::layers {

class RowPieces {
 public:
  // Adds the rooms of the pieces to the call. `rows`: of a share. `in_turn`: two rooms for the rows of all ranks, else one
  // each.
  RowPieces(GridCall& call, const std::string& name, DType dtype, const TensorParallel& tensor, std::int64_t rows,
            std::int64_t width, bool in_turn);

  [[nodiscard]] std::uint32_t count() const { return count_; }
  [[nodiscard]] double fraction(std::uint32_t piece) const {  // of all rows
    return static_cast<double>(of_share(piece).count) / static_cast<double>(rows_);
  }
  [[nodiscard]] std::uint32_t own(std::uint32_t piece) const { return own_[piece]; }  // the room of this rank's rows
  [[nodiscard]] std::uint32_t all(std::uint32_t piece) const { return all_[piece % all_.size()]; }
  [[nodiscard]] const std::vector<std::uint32_t>& own_rooms() const { return own_; }
  [[nodiscard]] const std::vector<std::uint32_t>& all_rooms() const { return all_; }

  // Exchanges between these two rooms.
  void gather(GridCall& call, Half half, std::uint32_t piece) const;
  void scatter(GridCall& call, Half half, std::uint32_t piece) const;

  // use(rows of the piece, the same rows of the share).
  template <class Use>
  void each_own(const LayerTensors& t, const TensorView& share, Use&& use) const {
    for (std::uint32_t i = 0; i < count_; ++i) {
      const auto [begin, rows] = of_share(i);
      use(GridCall::view(t, own_[i], {rows, width_}), row_slice(share, begin, rows));
    }
  }
  // use(rows of one rank in the piece, or of several that lie together, where they begin in the whole activation).
  template <class Use>
  void each_rank(const LayerTensors& t, std::uint32_t piece, Use&& use) const {
    const auto [begin, rows] = of_share(piece);
    const auto everyones = GridCall::view(t, all(piece), {rows * ranks_, width_});
    if (count_ == 1) return use(everyones, 0);  // the shares are one run
    for (std::int64_t r = 0; r < ranks_; ++r) use(row_slice(everyones, r * rows, rows), r * rows_ + begin);
  }

 private:
  [[nodiscard]] Block of_share(std::uint32_t piece) const {
    return block_of(rows_, static_cast<int>(piece), static_cast<int>(count_));
  }
  [[nodiscard]] std::int64_t elements(std::uint32_t piece) const { return of_share(piece).count * width_; }

  std::int64_t ranks_, rows_, width_;
  std::uint32_t count_;
  std::vector<std::uint32_t> own_, all_;
};

}  // namespace terrace::layers
