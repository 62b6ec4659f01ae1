#include <terrace/parallel/plan/check_tensor.h>

#include <fmt/format.h>

#include <terrace/core/base/refused_setting.h>

namespace terrace::planning {
namespace {

void check_pieces(const TensorParallel& tensor, const BatchShape& batch) {
  if (tensor.pieces == 1) return;
  const auto refuse = [&](const std::string& why) {
    throw RefusedSetting("tp-overlap", fmt::format("`tp-overlap` {}{}", tensor.pieces, why));
  };
  if (tensor.ranks == 1) refuse(" cuts what tensor ranks exchange\n  give `tp` 2 or more and `sp`, or leave out `tp-overlap`");
  if (!tensor.sequence)
    refuse(" cuts the gathers and sums of sequence parallelism\n  give `sp`, too, or leave out `tp-overlap`");
  if (const auto rows = batch.tokens() / tensor.ranks; tensor.pieces > rows)
    refuse(fmt::format(": a rank has {} rows of a micro-batch\n  give `tp-overlap` {} or less", rows, rows));
}

}  // namespace

void check_tensor(const Model& model, const PlanRequest& request) {
  const auto tensor = model.place.tensor();
  check_pieces(tensor, request.shape.batch);
  if (tensor.ranks == 1) {
    if (tensor.sequence)
      throw RefusedSetting("sp", "`sp` splits activations over tensor ranks\n  give `tp` 2 or more, or leave out `sp`");
    return;
  }
  if (!request.trains())
    throw RefusedSetting(
        "tp", fmt::format("`tp` {} does not work with generation\n  generate on one rank, or leave out `tp`", tensor.ranks));
  if (tensor.is_grid()) {
    const auto ways = std::int64_t{tensor.grid.depth} * tensor.grid.side, batch = request.shape.batch.batch;
    if (batch % ways != 0)
      throw RefusedSetting("tp-mode",
                           fmt::format("`tp-mode` deals the {} sequences of a micro-batch out to {} rows of ranks, which does "
                                       "not divide them\n  give `batch-size` {}, or `tp-mode` 1d",
                                       batch, ways, batch < ways ? ways : batch / ways * ways));
  }
  const auto tokens = request.shape.batch.tokens();
  if (tensor.sequence && tokens % tensor.ranks != 0)
    throw RefusedSetting("sp",
                         fmt::format("`sp` splits the {} positions of a micro-batch over {} ranks, which does not divide them\n"
                                     "  give a `batch-size` or `seq-len` with a multiple of {} positions",
                                     tokens, tensor.ranks, tensor.ranks));
}

}  // namespace terrace::planning
