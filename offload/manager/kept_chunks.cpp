#include <terrace/offload/manager/kept_chunks.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/error.h>
#include <terrace/core/base/printable.h>
#include <terrace/core/base/units.h>

namespace terrace::offload {
namespace {

// The store's texts are JSON.
void demand_utf8(const char* what, const std::string& text) try {
  static_cast<void>(nlohmann::json(text).dump());
} catch (const nlohmann::json::type_error&) {
  throw Error(
      fmt::format("{} is not UTF-8: {}\n  write other bytes as text, for example in base64", what, base::printable(text)),
      ErrorKind::refused);
}

std::string form_of(const ChunkDescription& d) {
  auto text = fmt::format("{} bytes of {}, a {}", d.bytes, d.dtype, name_of(d.kind));
  for (const auto& r : d.ranges)
    text += fmt::format(", elements {}..{} of {}", r.first_element, r.first_element + r.elements, base::printable(r.tensor));
  return text;
}

}  // namespace

KeptChunks::KeptChunks(ChunkStore& store, memory::Residency& residency) : store_(store), residency_(residency) {
  if (store_.last_commit()) adopt();
}

// The index has the offset of the committed generation; it is the first or the second of its place. From the low end on, each
// chunk takes the lowest place of the two that is free: the original places are one solution, so every chunk finds one, and the
// store then finds the committed bytes in a generation of it.
void KeptChunks::adopt() {
  auto chunks = store_.committed();
  std::ranges::sort(chunks, {}, [](const StoredChunk& c) { return index(c.description.chunk); });
  for (const auto& chunk : chunks) {
    const auto& d = chunk.description;
    // Numbers that the last process gave to chunks that do not last.
    while (residency_.chunks() < index(d.chunk)) residency_.add(kPageBytes, ChunkKind::activation, memory::End::low);
    residency_.add(d.bytes, d.kind, memory::End::low);
    committed_[d.label] = d;
  }
  std::ranges::sort(chunks, {}, &StoredChunk::offset);
  std::uint64_t end = 0;  // of the places so far
  for (const auto& chunk : chunks) {
    const auto bytes = chunk.description.bytes;
    const bool is_second = chunk.offset >= end + bytes;
    const auto place = is_second ? chunk.offset - bytes : chunk.offset;
    end = place + 2 * bytes;
    if (const auto capacity = residency_.space(Tier::disk).capacity_bytes(); end > capacity)
      throw Error(fmt::format("{}: its chunks take {} bytes, but nvme_bytes is {}\n  raise nvme_bytes by {} bytes",
                              store_.path_of(0).parent_path().string(), end, capacity, end - capacity),
                  ErrorKind::does_not_fit, {.path = store_.path_of(0).parent_path().string()});
    residency_.adopt_on_disk(chunk.description.chunk, place);
  }
}

ChunkId KeptChunks::add(ChunkDescription description) {
  if (description.label.empty()) throw std::logic_error("a chunk that lasts needs a name");
  demand_utf8("the name of a chunk", description.label);
  if (names_.contains(description.label))
    throw std::logic_error(fmt::format("two chunks have the name {}", base::printable(description.label)));
  const auto found = committed_.find(description.label);
  if (found != committed_.end()) {
    if (!means_the_same(description, found->second)) refuse_other(description, found->second);
    names_.insert(description.label);
    added_.insert(found->second.chunk);
    return found->second.chunk;
  }
  const auto chunk = residency_.add(description.bytes, description.kind, memory::End::low);
  residency_.reserve_on_disk(chunk);
  description.chunk = chunk;
  names_.insert(description.label);
  added_.insert(chunk);
  store_.describe(std::move(description));
  return chunk;
}

void KeptChunks::refuse_other(const ChunkDescription& wanted, const ChunkDescription& stored) const {
  const auto folder = store_.path_of(0).parent_path().string();
  throw Error(
      fmt::format("{} in {} has another form than it had in the last commit\n  wanted: {}\n  committed: {}\n  add it as it "
                  "was, or give another store",
                  base::printable(wanted.label), folder, form_of(wanted), form_of(stored)),
      ErrorKind::refused, {.path = folder, .object = wanted.label});
}

std::vector<std::string> KeptChunks::left_out(std::size_t most) const {
  std::vector<std::string> names;
  for (const auto& [name, description] : committed_)
    if (names.size() < most && !names_.contains(name)) names.push_back(name);
  return names;
}

void KeptChunks::flush(std::vector<Move>& moves) {
  for (const auto chunk : added_)
    if (residency_.has_content(chunk)) residency_.flush(chunk, Clock{}, moves);
}

void KeptChunks::commit(std::uint64_t step, const std::string& payload) {
  demand_utf8("the payload of a commit", payload);
  store_.commit(step, payload);
}

}  // namespace terrace::offload
