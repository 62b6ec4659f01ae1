#include <terrace/parallel/groups.h>

#include <algorithm>
#include <stdexcept>

#include <terrace/parallel/mesh.h>

namespace terrace {

RankSpan span_of(RankSet set, const DataParallel& data, const PipelineParallel& pipeline, std::uint32_t layer) {
  switch (set) {
    case RankSet::world: return {data.ranks * pipeline.ranks, 1};
    case RankSet::data:
    case RankSet::turns: return {data.ranks, 1};
    case RankSet::sharers: return {data.sharers(), 1};
    case RankSet::copies: return {data.copies(), data.sharers()};
    case RankSet::pipeline: return {pipeline.ranks, data.ranks};
    case RankSet::replica: return {pipeline.ranks * data.sharers(), 1};
    case RankSet::directions: break;
  }
  // Neighbours in data, and in every direction another rank of the pipeline.
  const auto one = pipeline.holder(layer, 0), other = pipeline.holder(layer, 1);
  return {pipeline.replicas() * data.ranks, data.ranks > 1 ? 1 : std::max(one, other) - std::min(one, other)};
}

Groups::Groups(Communicator* world, const DataParallel& data, const PipelineParallel& pipeline) : world_(world) {
  if (pipeline.ranks > 1) {
    const auto mesh = Mesh::of(static_cast<int>(data.ranks), static_cast<int>(pipeline.ranks));
    pipeline_ = mesh.split(*world, "pp");
    if (data.ranks > 1) own_data_ = mesh.split(*world, "dp");
    if (data.copies() > 1) replica_ = world->split(static_cast<int>(data.rank / data.sharers()), world->rank(), "replica");
  }
  if (pipeline.replicas() > 1) split_directions(data, pipeline);
  if (data.reduces() && data.ranks == 1) own_data_ = make_self_communicator();
  data_ = own_data_ ? own_data_.get() : pipeline_ ? nullptr : world;
  if (data_) split_data(data);
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
