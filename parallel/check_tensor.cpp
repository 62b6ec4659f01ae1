#include <terrace/parallel/check_tensor.h>

#include <fmt/format.h>

#include <terrace/core/refused_setting.h>
#include <terrace/parallel/skips.h>

namespace terrace {

void check_tensor(const Model& model, const PlanRequest& request) {
  const auto& tensor = model.tensor;
  if (tensor.ranks == 1) {
    if (tensor.sequence)
      throw RefusedSetting("sp", "`sp` splits activations over tensor ranks\n  give `tp` 2 or more, or leave out `sp`");
    return;
  }
  const auto refuse = [&](const char* what, const char* instead) {
    throw RefusedSetting("tp",
                         fmt::format("`tp` {} does not work with {}\n  {}, or leave out `tp`", tensor.ranks, what, instead));
  };
  if (model.dtype == DType::fp16)
    refuse("fp16 activations, because ranks do not add numbers of that dtype", "give `dtype` bf16 or fp32");
  if (Skips(model).any()) refuse("skip connections", "leave out `skips`");
  if (request.layer_unit) refuse("an optimizer that needs whole matrices", "give `optimizer` adamw");
  if (request.data.local) refuse("local SGD", "leave out `sync-interval`");
  if (request.pipeline && request.pipeline->schedule.placement.rank_of.size() > 1)
    refuse("an order in two directions", "give another `schedule`");
  if (request.decode_positions != 0) refuse("generation", "generate on one rank");
  const auto tokens = request.shape.batch.tokens();
  if (tensor.sequence && tokens % tensor.ranks != 0)
    throw RefusedSetting("sp",
                         fmt::format("`sp` splits the {} positions of a micro-batch over {} ranks, which does not divide them\n"
                                     "  give a `batch-size` or `seq-len` with a multiple of {} positions",
                                     tokens, tensor.ranks, tensor.ranks));
}

}  // namespace terrace
