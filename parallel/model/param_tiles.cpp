#include <terrace/parallel/model/param_tiles.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace terrace::model {

comm::Block tile_of(const ParamSpec& param, std::uint32_t tile) {
  if (tile >= param.tiles) throw std::logic_error(param.name + " has no tile " + std::to_string(tile));
  const std::int64_t parts = param.tile_parts;
  const auto of_part =
      comm::block_of(param.shape[param.tile_dim] / parts, static_cast<int>(tile), static_cast<int>(param.tiles));
  return {of_part.begin * parts, of_part.count * parts};
}

Shape tile_shape(const ParamSpec& param, std::uint32_t tile) {
  if (param.tiles == 1) return param.shape;
  const auto count = tile_of(param, tile).count;
  if (param.shape.rank() == 1) return {count};
  return param.tile_dim == 0 ? Shape{count, param.shape[1]} : Shape{param.shape[0], count};
}

void each_stored_run(const ParamSpec& param, const TensorParallel& tensor, std::uint64_t first, std::uint64_t count,
                     const std::function<void(const SplitRun&)>& use) {
  if (param.tiles == 1) return each_run(param.shape, param.split, tensor, first, count, use);
  const auto length = static_cast<std::uint64_t>(param.shape[param.tile_dim]);
  const std::uint64_t parts = param.tile_parts, rows = param.tile_dim == 0 ? 1 : static_cast<std::uint64_t>(param.shape[0]),
                      behind = static_cast<std::uint64_t>(param.shape.elements()) / (rows * length);  // elements of one place
  std::uint32_t tile = 0;
  for (auto at = first; at < first + count;) {
    const auto begin = static_cast<std::uint64_t>(tile_of(param, tile).begin),
               width = static_cast<std::uint64_t>(tile_of(param, tile).count);
    if (at >= (begin + width) * rows * behind) {
      ++tile;
      continue;
    }
    // In a tile: row by row, in each row part by part, in each part what is adjacent.
    const auto adjacent = width / parts * behind, in_tile = at - begin * rows * behind;
    const auto row = in_tile / adjacent / parts, part = in_tile / adjacent % parts;
    const auto in_part = (row * length + part * (length / parts) + begin / parts) * behind + in_tile % adjacent;
    const auto elements = std::min(adjacent - in_tile % adjacent, first + count - at);
    each_run(param.shape, param.split, tensor, in_part, elements, [&](const SplitRun& run) {
      use({at + (run.in_part - in_part), run.in_whole, run.count});
    });
    at += elements;
  }
}

}  // namespace terrace::model
