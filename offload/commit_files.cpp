#include <terrace/offload/commit_files.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/error.h>

namespace terrace {
namespace {

constexpr std::uint64_t kSlots[] = {0, 1};
// The number of an unreadable record, which may be the newest.
constexpr auto kUnknownNumber = std::numeric_limits<std::uint64_t>::max();

std::string index_name(std::uint64_t number) { return fmt::format("index.{}.json", number); }
// Two names alternate: a new record replaces the one before the last, so the last record exists until the new one is complete.
std::string record_name(std::uint64_t number) { return fmt::format("commit.{}", number % std::size(kSlots)); }

bool is_of_a_commit(const std::string& name) { return name.starts_with("index.") || name.starts_with("commit."); }

// A folder without read permission is an error, not a folder without a commit.
bool is_there(const std::filesystem::path& file) {
  std::error_code error;
  const bool there = std::filesystem::exists(file, error);
  if (error)
    throw Error(fmt::format("{} cannot be read: {}\n  fix the permissions there, or give another folder",
                            file.parent_path().string(), describe_errno(error.value())));
  return there;
}

}  // namespace

CommitFiles::Found CommitFiles::newest(std::uint64_t not_after_step) const {
  Found found;
  std::uint64_t damaged_number = 0;
  for (const auto slot : kSlots) {
    std::string text;
    if (files_.read_small(record_name(slot), text) == ExtentFiles::Found::absent) continue;
    auto record = parse_record(text);
    if (!record) {
      found.damage += fmt::format("\n  {}: the record is damaged", files_.small_path(record_name(slot)).string());
      damaged_number = kUnknownNumber;
      continue;
    }
    const auto number = record->commit.number;
    auto index = load_index(*record, found.damage);
    if (!index) {
      damaged_number = std::max(damaged_number, number);
    } else if (record->commit.step > not_after_step) {
      found.newer_passed_over = true;
    } else {
      found.numbers.push_back(number);
      if (number < found.record.commit.number) continue;
      found.record = std::move(*record);
      found.index = std::move(*index);
    }
  }
  if (found.numbers.empty()) refuse(found, not_after_step);
  found.newer_damaged = damaged_number > found.record.commit.number;
  return found;
}

void CommitFiles::refuse(const Found& nothing, std::uint64_t not_after_step) const {
  constexpr auto kGoBack = "\n  go back to an exported checkpoint";
  std::string why = "the run has no commit yet\n  a run commits at its end, on a signal, and every --ckpt-interval steps";
  if (nothing.newer_passed_over) {
    why = fmt::format("there is no commit of step {} or before{}", not_after_step, kGoBack);
  } else if (!nothing.damage.empty()) {
    why = fmt::format("there is no valid commit{}{}, and check the disk", nothing.damage, kGoBack);
  }
  throw Error(fmt::format("{}: {}", files_.small_path("").parent_path().string(), why), Exit::corrupt);
}

std::optional<StoreIndex> CommitFiles::load_index(const CommitRecord& record, std::string& damage) const {
  const auto name = index_name(record.commit.number);
  const auto path = files_.small_path(name).string();
  std::string text;
  if (files_.read_small(name, text) == ExtentFiles::Found::absent) {
    damage += fmt::format("\n  {}: the index is missing", path);
  } else if (checksum_of_text(text) != record.index_checksum) {
    damage += fmt::format("\n  {}: the index is damaged", path);
  } else if (auto index = parse_index(text)) {
    return index;
  } else {
    damage += fmt::format("\n  {}: the index cannot be read by this version", path);
  }
  return std::nullopt;
}

void CommitFiles::remove_others(const std::vector<std::uint64_t>& numbers) const {
  for (const auto& name : files_.names()) {
    const bool named = std::ranges::any_of(numbers, [&](auto n) { return name == index_name(n) || name == record_name(n); });
    if (is_of_a_commit(name) && !named) files_.remove_small(name);
  }
}

void CommitFiles::publish(const StoreIndex& index, const Commit& commit, bool durable) const {
  if (commit.number > 2) {
    files_.remove_small(record_name(commit.number));
    files_.remove_small(index_name(commit.number - 2));
  }
  if (durable) files_.sync();
  const auto text = write_index(index);
  files_.write_small(index_name(commit.number), text, durable);
  files_.write_small(record_name(commit.number), write_record({commit, checksum_of_text(text)}), durable);
}

void CommitFiles::take_back(bool durable) const {
  for (const auto slot : kSlots) files_.remove_small(record_name(slot));
  if (durable) files_.sync_folder();
}

// Records are removed first: an index or data without a record is harmless, a record without its data is not.
void CommitFiles::remove_all() const {
  auto names = files_.names();
  std::ranges::sort(names);
  for (const auto& name : names)
    if (is_of_a_commit(name)) files_.remove_small(name);
}

bool CommitFiles::only_the_first(const std::filesystem::path& directory) {
  return is_there(directory / record_name(1)) && is_there(directory / index_name(1)) && !is_there(directory / record_name(2));
}

bool CommitFiles::later_index(const std::filesystem::path& directory) {
  std::error_code error;
  return std::ranges::any_of(std::filesystem::directory_iterator(directory, error), [](const auto& entry) {
    const auto name = entry.path().filename().string();
    return name.starts_with("index.") && name.ends_with(".json") && name != index_name(1);
  });
}

bool CommitFiles::any(const std::filesystem::path& directory) {
  return std::ranges::any_of(kSlots, [&](auto slot) { return is_there(directory / record_name(slot)); });
}

}  // namespace terrace
