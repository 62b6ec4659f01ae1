// The texts of a commit: the index of all chunks, and the record that names it and carries its checksum.
//
// Pure. Threads: any. Errors: parse_*() return nothing for a text that was not written whole by write_*().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <terrace/offload/chunk_store.h>

namespace terrace {

struct StoreIndex {
  std::uint64_t number = 0;
  std::uint64_t stripe_bytes = 0;
  std::vector<std::uint32_t> stripe_weights = {1};  // one a path
  std::uint32_t generations = 2;
  std::vector<StoredChunk> chunks;
};
std::string write_index(const StoreIndex& index);
std::optional<StoreIndex> parse_index(const std::string& text);

struct CommitRecord {
  Commit commit;
  std::uint64_t index_checksum = 0;
};
std::string write_record(const CommitRecord& record);
std::optional<CommitRecord> parse_record(const std::string& text);
std::string with_checksum(const std::string& body);  // as the first line of a record

std::uint64_t checksum_of_text(const std::string& text);

}  // namespace terrace
