#include <terrace/parallel/model/param_tiles.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace terrace {

Block tile_of(const ParamSpec& param, std::uint32_t tile) {
  if (tile >= param.tiles) throw std::logic_error(param.name + " has no tile " + std::to_string(tile));
  return block_of(param.shape[param.tile_dim], static_cast<int>(tile), static_cast<int>(param.tiles));
}

Shape tile_shape(const ParamSpec& param, std::uint32_t tile) {
  if (param.tiles == 1) return param.shape;
  const auto count = tile_of(param, tile).count;
  if (param.shape.rank() == 1) return {count};
  return param.tile_dim == 0 ? Shape{count, param.shape[1]} : Shape{param.shape[0], count};
}

void each_stored_run(const ParamSpec& param, const TensorParallel& tensor, std::uint64_t first, std::uint64_t count,
                     const std::function<void(const SplitRun&)>& use) {
  if (param.tiles == 1 || param.tile_dim == 0) return each_run(param.shape, param.split, tensor, first, count, use);
  const auto rows = static_cast<std::uint64_t>(param.shape[0]), columns = static_cast<std::uint64_t>(param.shape[1]);
  std::uint32_t tile = 0;
  for (auto at = first; at < first + count;) {
    const auto begin = static_cast<std::uint64_t>(tile_of(param, tile).begin),
               width = static_cast<std::uint64_t>(tile_of(param, tile).count);
    if (at >= (begin + width) * rows) {
      ++tile;
      continue;
    }
    const auto row = (at - begin * rows) / width, column = (at - begin * rows) % width;
    const auto elements = std::min(width - column, first + count - at), in_part = row * columns + begin + column;
    each_run(param.shape, param.split, tensor, in_part, elements, [&](const SplitRun& run) {
      use({at + (run.in_part - in_part), run.in_whole, run.count});
    });
    at += elements;
  }
}

}  // namespace terrace
