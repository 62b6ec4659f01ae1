#include <terrace/parallel/check_tensor.h>

#include <fmt/format.h>

#include <terrace/core/refused_setting.h>

namespace terrace {

void check_tensor(const Model& model, const PlanRequest& request) {
  const auto& tensor = model.tensor;
  if (tensor.ranks == 1) {
    if (tensor.sequence)
      throw RefusedSetting("sp", "`sp` splits activations over tensor ranks\n  give `tp` 2 or more, or leave out `sp`");
    return;
  }
  if (request.decode_positions != 0)
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

}  // namespace terrace
