#include <terrace/parallel/model/tensor_edges.h>

namespace terrace {
namespace {

using Of = PhaseTensor::Of;

class Edges {
 public:
  Edges(CallSteps& steps, const TensorEdges& edges, BatchShape shape)
      : steps_(steps), edges_(edges), all_(shape.tokens() * edges.width), share_(all_ / edges.tensor.ranks) {}

  void gather(Of tensor, const char* name) {
    if (!edges_.tensor.sequence) return;
    const auto room = make_room(tensor, name);
    steps_.exchange_first(Half::both, {mesh::kTensorRanks, {0, tensor}, room, {share_}, {all_}, comm::Operation::all_gather});
  }
  void sum(Of tensor, const char* name, Half half) {
    if (!edges_.tensor.sequence)
      return steps_.exchange(half, {mesh::kTensorRanks, {0, tensor}, {0, tensor}, {all_}, {all_}, comm::Operation::all_reduce});
    const auto room = make_room(tensor, name);
    steps_.exchange(half, {mesh::kTensorRanks, room, {0, tensor}, {all_}, {share_}, comm::Operation::reduce_scatter});
  }

 private:
  std::uint32_t make_room(Of tensor, const char* name) {
    const auto room = steps_.room({name, edges_.dtype, {all_ / edges_.width, edges_.width}});
    steps_.keep_in(tensor, room);
    return room;
  }

  CallSteps& steps_;
  const TensorEdges& edges_;
  std::int64_t all_, share_;  // elements
};

}  // namespace

void add_tensor_edges(CallSteps& steps, LayerCall call, BatchShape shape, const TensorEdges& edges) {
  if (edges.tensor.ranks == 1 || call == LayerCall::decode) return;
  Edges at(steps, edges, shape);
  const bool backward = call == LayerCall::backward;
  if (backward && edges.has_y) at.gather(Of::dy, "gradient of y, all rows");
  if (edges.has_x && (!backward || edges.backward_reads_x)) at.gather(Of::x, "x, all rows");
  if (!backward && edges.has_y && edges.sums_y) at.sum(Of::y, "y, this rank's part of the sum", Half::both);
  if (backward && edges.has_x) at.sum(Of::dx, "gradient of x, this rank's part of the sum", Half::input);
}

}  // namespace terrace
