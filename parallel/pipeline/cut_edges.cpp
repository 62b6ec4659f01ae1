#include <terrace/parallel/pipeline/cut_edges.h>

#include <algorithm>

#include <terrace/parallel/pipeline/stage_graph.h>

namespace terrace::pipeline {

CutEdges::CutEdges(const Placement& p)
    : stages_(p.stages), out_of_(p.rank_of.size() * p.stages), into_(p.rank_of.size() * p.stages) {
  const StageGraph graph(p);
  for (std::uint32_t replica = 0; replica < p.rank_of.size(); ++replica) {
    const auto& rank_of = p.rank_of[replica];
    for (std::uint32_t stage = 0; stage < stages_; ++stage) {
      auto& out = out_of_[replica * stages_ + stage];
      for (const auto reader : graph.readers(stage)) {
        if (rank_of[reader] == rank_of[stage]) continue;
        auto edge = std::ranges::find(out, rank_of[reader], [&](std::uint32_t e) { return edges_[e].to; });
        if (edge == out.end()) {
          edge = out.insert(edge, count());
          edges_.push_back({stage, rank_of[stage], rank_of[reader], 0});
        }
        ++edges_[*edge].readers;
        into_[replica * stages_ + reader].push_back(*edge);
      }
    }
  }
}

}  // namespace terrace::pipeline
