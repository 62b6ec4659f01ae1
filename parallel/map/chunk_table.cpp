#include <terrace/parallel/map/chunk_table.h>

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace terrace::mapping {

std::uint32_t ChunkTable::add(std::uint32_t count, Chunk chunk) {
  chunk.run_first = size();
  chunk.run_count = count;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (count > 1) chunk.position = i;
    chunks_.push_back(chunk);
  }
  return chunk.run_first;
}

void ChunkTable::add_to(memory::Residency& residency) const {
  if (residency.chunks() != 0) throw std::logic_error("ChunkTable: the residency has chunks already");
  for (std::uint32_t i = 0; i < size(); i += std::max(1U, chunks_[i].run_count))
    residency.add_run(chunks_[i].run_count, std::max(chunks_[i].bytes, kPageBytes), chunks_[i].kind, chunks_[i].end);
}

std::uint64_t ChunkTable::state_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& c : chunks_)
    if (is_state(c.role)) bytes += c.bytes;
  return bytes;
}

std::string describe(const Chunk& c, const std::string& layer, std::uint64_t chunk_elements) {
  switch (c.role) {
    case Role::state: {
      const auto first = c.position * chunk_elements;
      return fmt::format("{} of {}, elements {}..{}", name_of(c.kind), layer, first, first + chunk_elements - 1);
    }
    case Role::tied_gradient: return fmt::format("tied gradient of {}, part {}", layer, c.position);
    case Role::input: return fmt::format("input of {}, micro-batch {}", layer, c.position);
    case Role::input_gradient: return fmt::format("input gradient of {}, micro-batch {}", layer, c.position);
    case Role::skip_gradient: return fmt::format("input gradient of {} by a skip, micro-batch {}", layer, c.position);
    case Role::saved: return fmt::format("saved activations of {}, micro-batch {}", layer, c.position);
    case Role::carried: return fmt::format("carried tensors of {}", layer);
    case Role::work: return fmt::format("working tensors of {}", layer);
    case Role::scratch: return fmt::format("scratch of {}", layer);
    case Role::spare: return "discarded output";
    case Role::gathered: return fmt::format("gathered weights of {}, group {}", layer, c.position);
    case Role::bucket: return fmt::format("gradient to reduce of {}, group {}", layer, c.position);
    case Role::tied_bucket: return fmt::format("tied gradient to reduce of {}, group {}", layer, c.position);
    case Role::visited: return "visited weights";
    case Role::update_scratch: return "scratch of updates";
    case Role::previous: return fmt::format("state of {} from before an early update, chunk {}", layer, c.position);
    case Role::kept: return fmt::format("weights of {} from before an update, chunk {}", layer, c.position);
  }
  return "chunk";
}

}  // namespace terrace::mapping
