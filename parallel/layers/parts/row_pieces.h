// The rows of an activation that tensor ranks exchange, cut into pieces: while one piece is multiplied, the next one is
// gathered, or the one before is added up.
//
// Piece i is a run of rows of each rank's share. The rows of all ranks in a piece are together, rank by rank, in one room (two
// rooms that alternate, or one per piece). In the whole activation they are one run per rank.
//
// Owner:   a value of one description of a call (call_steps.h), whose rooms it names. Threads: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <terrace/parallel/layers/parts/scratch.h>
#include <terrace/parallel/mesh/tensor_parallel.h>
#include <terrace/parallel/model/call_steps.h>

namespace terrace::layers {

class RowPieces {
 public:
  // All rows are here: one piece, which is not exchanged and has no room.
  RowPieces() = default;
  // Adds the rooms of the pieces to the call. `rows`: those of a share. `in_turn`: two rooms alternate for the rows of all
  // ranks; else each piece has its own.
  RowPieces(CallSteps& steps, const std::string& name, DType dtype, const TensorParallel& tensor, std::int64_t rows,
            std::int64_t width, bool in_turn);

  [[nodiscard]] bool shared() const { return !own_.empty(); }  // among ranks
  [[nodiscard]] std::uint32_t count() const { return count_; }
  [[nodiscard]] double fraction(std::uint32_t piece) const {  // of all rows
    return static_cast<double>(of_share(piece).count) / static_cast<double>(rows_);
  }
  [[nodiscard]] std::uint32_t own(std::uint32_t piece) const { return own_[piece]; }  // the room of this rank's rows
  [[nodiscard]] std::uint32_t all(std::uint32_t piece) const { return all_[piece % all_.size()]; }
  [[nodiscard]] const std::vector<std::uint32_t>& own_rooms() const { return own_; }
  [[nodiscard]] const std::vector<std::uint32_t>& all_rooms() const { return all_; }

  // Add rooms to those that a phase uses. keep_last() and keep_own() keep the rooms that an exchange of the last piece, or of
  // any piece, reads during the phase: if their use ended before, a tensor of the phase could get their memory, and the phase
  // would wait for the exchange.
  void use_all(Phase& phase, std::uint32_t piece, Access access) const {
    if (shared()) phase.work.push_back({all(piece), access});
  }
  void keep_last(Phase& phase, std::uint32_t piece) const {
    if (piece > 0) use_all(phase, piece - 1, Access::read);
  }
  void keep_own(Phase& phase) const {
    for (const auto room : own_) phase.work.push_back({room, Access::read});
  }
  // Exchanges between own(piece) and all(piece), if there is such a piece.
  void gather(CallSteps& steps, Half half, std::uint32_t piece) const;
  void scatter(CallSteps& steps, Half half, std::uint32_t piece) const;

  // Calls use(rows of the piece, the same rows of the share) for each piece.
  template <class Use>
  void each_own(const LayerTensors& t, const TensorView& share, Use&& use) const {
    for (std::uint32_t i = 0; i < count_; ++i) {
      const auto [begin, rows] = of_share(i);
      use(CallSteps::view(t, own_[i], {rows, width_}), row_slice(share, begin, rows));
    }
  }
  // Calls use(rows of a rank in the piece, their first row in the whole activation) for each rank, or once if there is one
  // piece. `whole`: the activation, if all its rows are here.
  template <class Use>
  void each_rank(const LayerTensors& t, std::uint32_t piece, const TensorView& whole, Use&& use) const {
    if (!shared()) return use(whole, 0);
    const auto [begin, rows] = of_share(piece);
    const auto everyones = CallSteps::view(t, all(piece), {rows * ranks_, width_});
    if (count_ == 1) return use(everyones, 0);  // the shares are contiguous
    for (std::int64_t r = 0; r < ranks_; ++r) use(row_slice(everyones, r * rows, rows), r * rows_ + begin);
  }

 private:
  [[nodiscard]] comm::Block of_share(std::uint32_t piece) const {
    return comm::block_of(rows_, static_cast<int>(piece), static_cast<int>(count_));
  }
  [[nodiscard]] std::int64_t elements(std::uint32_t piece) const { return of_share(piece).count * width_; }

  std::int64_t ranks_ = 1, rows_ = 1, width_ = 0;
  std::uint32_t count_ = 1;
  std::vector<std::uint32_t> own_, all_;
};

}  // namespace terrace::layers
