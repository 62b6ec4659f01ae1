#include <terrace/offload/store/store_index.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/units.h>
#include <terrace/offload/store/stripes.h>

namespace terrace::store {
namespace {

using nlohmann::json;

// Far larger than any store; sums of two such values do not overflow.
constexpr std::uint64_t kMostBytes = 1ULL << 60;
constexpr std::uint64_t kMostPaths = 1024, kMostGenerations = 2;

void demand(bool good, const char* what) {
  if (!good) throw std::invalid_argument(what);
}

// A non-negative integer: the library would convert −1 or 1.5, and truncate a number that is too large.
std::uint64_t number_in(const json& j, std::uint64_t least, std::uint64_t most) {
  demand(j.is_number_unsigned(), "a number is not whole, or negative");
  const auto value = j.get<std::uint64_t>();
  demand(value >= least && value <= most, "a number is out of its range");
  return value;
}
std::uint64_t bytes_in(const json& j, std::uint64_t least) {
  const auto value = number_in(j, least, kMostBytes);
  demand(value % kPageBytes == 0, "an offset or a length that is no multiple of the page");
  return value;
}

// 64-bit checksums as text: other readers of JSON keep only 53 bits of a number.
std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }
std::uint64_t from_hex(const std::string& text) {
  const auto value = std::stoull(text, nullptr, 16);
  demand(hex(value) == text, "a checksum is not 16 hexadecimal digits");
  return value;
}

json to_json(const StoredChunk& chunk) {
  const auto& d = chunk.description;
  json ranges = json::array();
  for (const auto& r : d.ranges) {
    auto& range = ranges.emplace_back(json{{"tensor", r.tensor},
                                           {"first_element", r.first_element},
                                           {"elements", r.elements},
                                           {"chunk_element", r.chunk_element}});
    if (r.rows == 1) continue;
    range["rows"] = r.rows;
    range["stride"] = r.stride;
  }
  return {{"chunk", index(d.chunk)},
          {"kind", static_cast<int>(d.kind)},
          {"dtype", d.dtype},
          {"bytes", d.bytes},
          {"label", d.label},
          {"offset", chunk.offset},
          {"xxh3", hex(chunk.checksum)},
          {"ranges", std::move(ranges)}};
}

TensorRange range_from(const json& j, std::uint64_t bytes) {
  TensorRange range{.tensor = j.at("tensor").get<std::string>(),
                    .first_element = number_in(j.at("first_element"), 0, kMostBytes),
                    .elements = number_in(j.at("elements"), 1, kMostBytes),
                    .chunk_element = number_in(j.at("chunk_element"), 0, kMostBytes)};
  if (j.contains("rows")) {
    range.rows = number_in(j.at("rows"), 2, kMostBytes / range.elements);
    range.stride = number_in(j.at("stride"), range.elements, kMostBytes / range.rows);
  }
  demand(range.chunk_element + range.elements * range.rows <= bytes, "a range of a tensor leaves its chunk");
  return range;
}

StoredChunk chunk_from(const json& j) {
  StoredChunk chunk;
  auto& d = chunk.description;
  d.chunk = ChunkId{static_cast<std::uint32_t>(number_in(j.at("chunk"), 0, ~std::uint32_t{0}))};
  d.kind = static_cast<ChunkKind>(number_in(j.at("kind"), 0, kChunkKinds - 1));
  d.dtype = j.at("dtype").get<std::string>();
  d.bytes = bytes_in(j.at("bytes"), kPageBytes);
  d.label = j.at("label").get<std::string>();
  chunk.offset = bytes_in(j.at("offset"), 0);
  chunk.checksum = from_hex(j.at("xxh3").get<std::string>());
  for (const auto& r : j.at("ranges")) d.ranges.push_back(range_from(r, d.bytes));
  return chunk;
}

// Each chunk occurs once, in the order of the ids, and no two chunks share bytes.
void demand_disjoint(const std::vector<StoredChunk>& chunks) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    demand(i == 0 || index(chunks[i - 1].description.chunk) < index(chunks[i].description.chunk), "a chunk comes twice");
    places.emplace_back(chunks[i].offset, chunks[i].offset + chunks[i].description.bytes);
  }
  std::ranges::sort(places);
  for (std::size_t i = 1; i < places.size(); ++i) demand(places[i - 1].second <= places[i].first, "two chunks overlap");
}

// A record without its first line, if that line is the checksum of the rest.
std::optional<std::string> body_of(const std::string& record) {
  constexpr std::size_t kHexDigits = 16;
  if (record.size() <= kHexDigits || record[kHexDigits] != '\n') return std::nullopt;
  auto body = record.substr(kHexDigits + 1);
  if (record.compare(0, kHexDigits, hex(checksum_of_text(body))) != 0) return std::nullopt;
  return body;
}

std::optional<std::uint64_t> other_version(const std::string& text) {
  const json all = json::parse(text, nullptr, false);
  if (!all.is_object() || !all.contains("version") || !all.at("version").is_number_unsigned()) return std::nullopt;
  const auto version = all.at("version").get<std::uint64_t>();
  return version == kStoreVersion || version == kStoreVersionOfRows ? std::nullopt : std::optional(version);
}

}  // namespace

std::uint64_t checksum_of_text(const std::string& text) { return checksum_of(std::as_bytes(std::span(text))); }

std::string write_index(const StoreIndex& index) {
  json chunks = json::array();
  for (const auto& chunk : index.chunks) chunks.push_back(to_json(chunk));
  const auto has_rows = [](const StoredChunk& chunk) {
    return std::ranges::any_of(chunk.description.ranges, [](const TensorRange& range) { return range.rows != 1; });
  };
  const auto version = std::ranges::any_of(index.chunks, has_rows) ? kStoreVersionOfRows : kStoreVersion;
  const json all = {{"version", version},
                    {"commit", index.number},
                    {"stripe_bytes", index.stripe_bytes},
                    {"stripe_weights", index.stripe_weights},
                    {"generations", index.generations},
                    {"chunks", std::move(chunks)}};
  return all.dump(1);
}

std::optional<StoreIndex> parse_index(const std::string& text) {
  try {
    const json all = json::parse(text);
    number_in(all.at("version"), kStoreVersion, kStoreVersionOfRows);
    StoreIndex index;
    index.number = number_in(all.at("commit"), 1, kMostBytes);
    index.stripe_bytes = bytes_in(all.at("stripe_bytes"), kPageBytes);
    index.stripe_weights.clear();
    for (const auto& weight : all.at("stripe_weights"))
      index.stripe_weights.push_back(static_cast<std::uint32_t>(number_in(weight, 1, Stripes::kMostWeight)));
    demand(!index.stripe_weights.empty() && index.stripe_weights.size() <= kMostPaths, "no paths, or very many");
    index.generations = static_cast<std::uint32_t>(number_in(all.at("generations"), 1, kMostGenerations));
    for (const auto& chunk : all.at("chunks")) index.chunks.push_back(chunk_from(chunk));
    demand_disjoint(index.chunks);
    return index;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// The first line is the checksum of the lines after it.
std::string write_record(const CommitRecord& record) {
  json body = {{"version", kStoreVersion},
               {"commit", record.commit.number},
               {"step", record.commit.step},
               {"index_xxh3", hex(record.index_checksum)},
               {"payload", record.commit.payload}};
  if (!record.commit.run_id.empty()) body["run_id"] = record.commit.run_id;
  return with_checksum(body.dump(1) + "\n");
}

std::string with_checksum(const std::string& body) { return hex(checksum_of_text(body)) + "\n" + body; }

std::optional<CommitRecord> parse_record(const std::string& text) {
  const auto body_text = body_of(text);
  if (!body_text) return std::nullopt;
  try {
    const json body = json::parse(*body_text);
    number_in(body.at("version"), kStoreVersion, kStoreVersionOfRows);
    return CommitRecord{{number_in(body.at("commit"), 1, kMostBytes), number_in(body.at("step"), 0, kMostBytes),
                         body.at("payload").get<std::string>(), body.value("run_id", std::string())},
                        from_hex(body.at("index_xxh3").get<std::string>())};
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::optional<std::uint64_t> other_version_of_index(const std::string& text) { return other_version(text); }
std::optional<std::uint64_t> other_version_of_record(const std::string& text) {
  const auto body = body_of(text);
  return body ? other_version(*body) : std::nullopt;
}

}  // namespace terrace::store
