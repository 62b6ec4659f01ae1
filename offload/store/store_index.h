// The texts of a commit: the index of all chunks, and the record with the index's name and checksum.
//
// Pure. Threads: any. Errors: parse_*() return nothing for a text that is not a complete text of write_*().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <terrace/offload/store/chunk_store.h>

namespace terrace::store {

// The version of both texts. An index with a range of several rows has the second version, which older programs refuse.
inline constexpr std::uint64_t kStoreVersion = 1, kStoreVersionOfRows = 2;

struct StoreIndex {
  std::uint64_t number = 0;
  std::uint64_t stripe_bytes = 0;
  std::vector<std::uint32_t> stripe_weights = {1};  // one for each path
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
// If a text has the right checksum but another version than this program reads: that version.
std::optional<std::uint64_t> other_version_of_index(const std::string& text);
std::optional<std::uint64_t> other_version_of_record(const std::string& text);
std::string with_checksum(const std::string& body);  // puts the checksum line of a record before it

std::uint64_t checksum_of_text(const std::string& text);

}  // namespace terrace::store
