#include <terrace/offload/store_index.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace terrace {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;

// 64-bit checksums as text: other readers of JSON keep only 53 bits of a number.
std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }
std::uint64_t from_hex(const std::string& text) { return std::stoull(text, nullptr, 16); }

json to_json(const StoredChunk& chunk) {
  const auto& d = chunk.description;
  json ranges = json::array();
  for (const auto& r : d.ranges) {
    ranges.push_back({{"tensor", r.tensor},
                      {"first_element", r.first_element},
                      {"elements", r.elements},
                      {"chunk_element", r.chunk_element}});
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

StoredChunk chunk_from(const json& j) {
  StoredChunk chunk;
  auto& d = chunk.description;
  d.chunk = ChunkId{j.at("chunk").get<std::uint32_t>()};
  d.kind = static_cast<Kind>(j.at("kind").get<int>());
  d.dtype = j.at("dtype");
  d.bytes = j.at("bytes");
  d.label = j.at("label");
  chunk.offset = j.at("offset");
  chunk.checksum = from_hex(j.at("xxh3"));
  for (const auto& r : j.at("ranges"))
    d.ranges.push_back({r.at("tensor"), r.at("first_element"), r.at("elements"), r.at("chunk_element")});
  return chunk;
}

}  // namespace

std::uint64_t checksum_of_text(const std::string& text) { return checksum_of(std::as_bytes(std::span(text))); }

std::string write_index(const StoreIndex& index) {
  json chunks = json::array();
  for (const auto& chunk : index.chunks) chunks.push_back(to_json(chunk));
  const json all = {{"version", kVersion},  {"commit", index.number},           {"stripe_bytes", index.stripe_bytes},
                    {"paths", index.paths}, {"generations", index.generations}, {"chunks", std::move(chunks)}};
  return all.dump(1);
}

std::optional<StoreIndex> parse_index(const std::string& text) {
  try {
    const json all = json::parse(text);
    if (all.at("version") != kVersion) return std::nullopt;
    StoreIndex index;
    index.number = all.at("commit");
    index.stripe_bytes = all.at("stripe_bytes");
    index.paths = all.at("paths");
    index.generations = all.at("generations");
    for (const auto& chunk : all.at("chunks")) index.chunks.push_back(chunk_from(chunk));
    return index;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// The first line is the checksum of all that follows it.
std::string write_record(const CommitRecord& record) {
  const json body = {{"version", kVersion},
                     {"commit", record.commit.number},
                     {"step", record.commit.step},
                     {"index_xxh3", hex(record.index_checksum)},
                     {"payload", record.commit.payload}};
  const auto text = body.dump(1) + "\n";
  return hex(checksum_of_text(text)) + "\n" + text;
}

std::optional<CommitRecord> parse_record(const std::string& text) {
  constexpr std::size_t kHexDigits = 16;
  if (text.size() <= kHexDigits || text[kHexDigits] != '\n') return std::nullopt;
  const auto body_text = text.substr(kHexDigits + 1);
  if (text.compare(0, kHexDigits, hex(checksum_of_text(body_text))) != 0) return std::nullopt;
  try {
    const json body = json::parse(body_text);
    if (body.at("version") != kVersion) return std::nullopt;
    return CommitRecord{{body.at("commit"), body.at("step"), body.at("payload")}, from_hex(body.at("index_xxh3"))};
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace terrace
