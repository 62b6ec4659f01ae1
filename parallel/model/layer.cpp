#include <terrace/parallel/model/layer.h>

namespace terrace {

CallSteps Layer::described(LayerCall call, BatchShape shape) const {
  CallSteps steps;
  describe(steps, call, shape);
  return steps;
}

void Layer::forward(LayerContext& ctx, const LayerTensors& t) const { described(LayerCall::forward, ctx.shape).run(ctx, t); }

void Layer::backward(LayerContext& ctx, const LayerTensors& t, Half half) const {
  ctx.half = half;
  described(LayerCall::backward, ctx.shape).run(ctx, t);
}

}  // namespace terrace
