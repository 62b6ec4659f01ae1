#include <terrace/parallel/groups.h>

#include <algorithm>
#include <stdexcept>

#include <terrace/parallel/mesh.h>

namespace terrace {

RankSpan span_of(RankSet set, const RankPlace& place, std::uint32_t layer) {
  const auto& [data, pipeline, tensor] = place;
  switch (set) {
    case RankSet::world: return {place.ranks(), 1};
    case RankSet::data:
    case RankSet::turns: return {data.ranks, tensor.ranks};
    case RankSet::sharers: return {data.sharers(), tensor.ranks};
    case RankSet::copies: return {data.copies(), data.sharers() * tensor.ranks};
    case RankSet::pipeline: return {pipeline.ranks, data.ranks * tensor.ranks};
    case RankSet::replica: return {pipeline.ranks * data.sharers() * tensor.ranks, 1};
    case RankSet::tensor: return {tensor.ranks, 1};
    case RankSet::twins: return {tensor.twins, 1};
    case RankSet::model: return {pipeline.ranks * tensor.ranks, 1};
    case RankSet::directions: break;
  }
  // Neighbours in data, and in every direction another rank of the pipeline.
  const auto one = pipeline.holder(layer, 0), other = pipeline.holder(layer, 1);
  return {pipeline.replicas() * data.ranks, data.ranks > 1 ? 1 : std::max(one, other) - std::min(one, other)};
}

std::uint32_t number_of(RankSet set, const RankPlace& place, std::uint32_t layer) {
  const auto& [data, pipeline, tensor] = place;
  const auto shard = data.rank % data.sharers(), copy = data.rank / data.sharers();
  switch (set) {
    case RankSet::world: return 0;
    case RankSet::data:
    case RankSet::turns: return pipeline.rank * tensor.ranks + tensor.rank;
    case RankSet::sharers: return (pipeline.rank * data.copies() + copy) * tensor.ranks + tensor.rank;
    case RankSet::copies: return (pipeline.rank * data.sharers() + shard) * tensor.ranks + tensor.rank;
    case RankSet::pipeline: return data.rank * tensor.ranks + tensor.rank;
    case RankSet::replica: return copy;
    case RankSet::directions: return pipeline.stage(layer);
    case RankSet::tensor: return pipeline.rank * data.ranks + data.rank;
    case RankSet::twins: return place.rank() / tensor.twins;
    case RankSet::model: return data.rank;
  }
  return 0;
}

Groups::Groups(Communicator* world, const RankPlace& place) : world_(world) {
  const auto& [data, pipeline, tensor] = place;
  // A set of all ranks needs no communicator of its own.
  const auto split_some = [&](std::unique_ptr<Communicator>& own, RankSet set, const char* name) -> Communicator* {
    if (span_of(set, place).ranks == place.ranks()) return world;
    if (span_of(set, place).ranks > 1) own = split(set, place, name);
    return own.get();
  };
  if (pipeline.ranks > 1) pipeline_ = split(RankSet::pipeline, place, "pp");
  data_ = split_some(own_data_, RankSet::data, "dp");
  if (pipeline.ranks > 1 && data.copies() > 1) replica_ = split(RankSet::replica, place, "replica");
  if (tensor.ranks > 1) {
    tensor_ = split_some(own_tensor_, RankSet::tensor, "tp");
    if (tensor.twins > 1 && tensor.twins < tensor.ranks) twins_ = split(RankSet::twins, place, "twins");
    if (!replica_ && data.copies() > 1) replica_ = split(RankSet::replica, place, "replica");
  }
  model_ = tensor.ranks > 1 ? split_some(own_model_, RankSet::model, "model") : pipeline_.get();
  if (pipeline.replicas() > 1) split_directions(data, pipeline);
  if (data.reduces() && data.ranks == 1) {
    own_data_ = make_self_communicator();
    data_ = own_data_.get();
  }
  if (data_) split_data(data);
}

std::unique_ptr<Communicator> Groups::split(RankSet set, const RankPlace& place, const char* name) {
  return world_->split(static_cast<int>(number_of(set, place)), world_->rank(), name);
}

void Groups::split_data(const DataParallel& data) {
  if (data.copies() == 1) return;
  const Mesh mesh({{"copies", static_cast<int>(data.copies())}, {"sharers", static_cast<int>(data.sharers())}});
  sharers_ = mesh.split(*data_, "sharers");
  copies_ = mesh.split(*data_, "copies");
  if (data.canonical) turns_ = data_->split(0, static_cast<int>(data.turn()), "turns");
}

// Every rank takes part in making each stage's group. A stage without layers has no ranks.
void Groups::split_directions(const DataParallel& data, const PipelineParallel& pipeline) {
  const auto& stage_of = pipeline.stage_of;
  for (std::uint32_t stage = 0; stage <= *std::ranges::max_element(stage_of); ++stage) {
    const auto layer = static_cast<std::uint32_t>(std::ranges::find(stage_of, stage) - stage_of.begin());
    const bool mine = layer < stage_of.size() && pipeline.holds(layer);
    const auto turn = mine ? pipeline.replica(layer) * data.ranks + data.turn() : 0;
    directions_.push_back(world_->split(mine ? 0 : -1, static_cast<int>(turn), "directions"));
  }
}

Communicator* Groups::find(RankSet set, std::uint32_t stage) const {
  switch (set) {
    case RankSet::world: return world_;
    case RankSet::data: return data_;
    case RankSet::sharers: return sharers_ ? sharers_.get() : data_;
    case RankSet::copies: return copies_.get();
    case RankSet::turns: return turns_ ? turns_.get() : data_;
    case RankSet::pipeline: return pipeline_.get();
    case RankSet::replica: return replica_ ? replica_.get() : world_;
    case RankSet::directions: return directions_.at(stage).get();
    case RankSet::tensor: return tensor_;
    case RankSet::twins: return twins_ ? twins_.get() : tensor_;
    case RankSet::model: return model_;
  }
  return nullptr;
}

Communicator& Groups::of(RankSet set, std::uint32_t stage) const {
  auto* const ranks = find(set, stage);
  if (!ranks)
    throw std::logic_error("Groups: a program exchanges something between ranks, and this rank was given no communicator");
  return *ranks;
}

}  // namespace terrace
