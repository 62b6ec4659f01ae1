#include <terrace/offload/store/commit_files.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/text_file.h>

namespace terrace::store {
namespace {

constexpr std::uint64_t kSlots[] = {0, 1};

std::string index_name(std::uint64_t number) { return fmt::format("index.{}.json", number); }
std::uint64_t slot_of(std::uint64_t number) { return number % std::size(kSlots); }
// Two names alternate: a new record replaces the one before the last, so the last record exists until the new one is complete.
std::string record_name(std::uint64_t number) { return fmt::format("commit.{}", slot_of(number)); }
std::array<std::string, 2> copies_of(const std::string& name) { return {name, name + ".copy"}; }
bool is_copy_of(const std::string& file, const std::string& name) { return std::ranges::count(copies_of(name), file) > 0; }

bool is_of_a_commit(const std::string& name) { return name.starts_with("index.") || name.starts_with("commit."); }

// The commit number in the name of an index file; 0 for any other file.
std::uint64_t number_of_index(const std::string& file) {
  constexpr std::string_view kPrefix = "index.";
  if (!file.starts_with(kPrefix)) return 0;
  const auto number = std::strtoull(file.c_str() + kPrefix.size(), nullptr, 10);
  return is_copy_of(file, index_name(number)) ? number : 0;
}

// A folder without read permission is an error, not a folder without a commit.
bool is_there(const std::filesystem::path& file) {
  std::error_code error;
  const bool there = std::filesystem::exists(file, error);
  if (error)
    throw errno_error(error.value(), file.parent_path().string(), file.parent_path().string() + " cannot be read",
                      "fix the permissions there, or give another folder");
  return there;
}
bool any_copy(const std::filesystem::path& directory, const std::string& name) {
  return std::ranges::any_of(copies_of(name), [&](const auto& copy) { return is_there(directory / copy); });
}

}  // namespace

// A file that is damaged, cannot be read, or is missing.
struct CommitFiles::Lost {
  std::uint64_t slot = 0;
  std::uint64_t number = 0;  // of its commit; 0: unknown
  std::string what = {};     // one line
  bool missing = false;
  std::exception_ptr unreadable = {};  // unlike damage: another attempt may succeed
};

struct CommitFiles::Copies {
  struct Copy {
    std::string name;
    std::optional<std::string> text;     // none: the file is missing or cannot be read
    std::exception_ptr unreadable = {};  // why
    std::string why = {};
  };
  std::array<Copy, 2> all;

  // Both copies must have this text.
  void add_repairs(const std::string& text, std::vector<Repair>& repairs) const {
    for (const auto& copy : all)
      if (copy.text != text) repairs.push_back({copy.name, text});
  }
};

CommitFiles::Copies CommitFiles::read(const std::string& name) const {
  Copies copies;
  for (std::size_t i = 0; i < copies.all.size(); ++i) {
    auto& copy = copies.all[i];
    copy.name = copies_of(name)[i];
    try {
      std::string text;
      if (files_.read_small(copy.name, text) == ExtentFiles::Found::read) copy.text = std::move(text);
    } catch (const Error& error) {
      copy.unreadable = std::current_exception();
      copy.why = error.what();
      copy.why.resize(std::min(copy.why.find('\n'), copy.why.size()));  // without the remedy, which is on the next lines
    }
  }
  return copies;
}

std::optional<CommitRecord> CommitFiles::load_record(std::uint64_t slot, std::vector<Lost>& lost,
                                                     std::vector<Repair>& repairs) const {
  const auto copies = read(record_name(slot));
  std::optional<CommitRecord> newest;
  const std::string* text = nullptr;
  for (const auto& copy : copies.all) {
    if (copy.unreadable) lost.push_back({.slot = slot, .what = copy.why, .unreadable = copy.unreadable});
    if (!copy.text) continue;
    auto record = parse_record(*copy.text);
    if (!record) {
      demand_version(copy.name, other_version_of_record(*copy.text));
      lost.push_back({.slot = slot, .what = files_.small_path(copy.name).string() + ": the record is damaged"});
    } else if (!newest || record->commit.number > newest->commit.number) {
      newest = std::move(record);
      text = &*copy.text;
    }
  }
  if (!newest) return newest;
  copies.add_repairs(*text, repairs);
  return newest;
}

std::optional<StoreIndex> CommitFiles::load_index(const CommitRecord& record, std::vector<Lost>& lost,
                                                  std::vector<Repair>& repairs) const {
  const auto number = record.commit.number;
  const auto name = index_name(number);
  const auto copies = read(name);
  const Lost of_this{.slot = slot_of(number), .number = number};
  const auto lose = [&](const std::string& file, const char* what) {
    lost.push_back(of_this);
    lost.back().what = fmt::format("{}: the index {}", files_.small_path(file).string(), what);
  };
  std::optional<StoreIndex> index;
  const std::string* text = nullptr;
  bool missing = true;
  for (const auto& copy : copies.all) {
    missing = missing && !copy.text && !copy.unreadable;
    if (copy.unreadable) {
      lost.push_back(of_this);
      lost.back().what = copy.why;
      lost.back().unreadable = copy.unreadable;
    } else if (copy.text && checksum_of_text(*copy.text) != record.index_checksum) {
      lose(copy.name, "is damaged");
    } else if (copy.text && !text) {
      text = &*copy.text;
      index = parse_index(*text);
      if (!index) demand_version(copy.name, other_version_of_index(*text));
      if (!index) lose(copy.name, "is damaged");
    }
  }
  if (missing) lose(name, "is missing");
  if (missing) lost.back().missing = true;
  if (!index) return index;
  copies.add_repairs(*text, repairs);
  return index;
}

// An index is on disk before its record, and is removed after it. So a lost record without a number is newer than commit
// `number` only if its slot has a later index.
bool CommitFiles::is_newer(const Lost& lost, std::uint64_t number) const {
  if (lost.number != 0) return lost.number > number;
  const auto names = files_.names();
  return std::ranges::any_of(names, [&](const auto& name) {
    const auto other = number_of_index(name);
    return other > number && slot_of(other) == lost.slot;
  });
}

void CommitFiles::demand_version(const std::string& name, std::optional<std::uint64_t> other) const {
  if (!other) return;
  throw Error(
      fmt::format("{}: the store has version {}, and this program reads version {}\n  continue the run with the version "
                  "of terrace that wrote it; nothing was changed",
                  files_.small_path(name).string(), *other, kStoreVersionOfRows),
      ErrorKind::refused, {.path = files_.small_path(name).string()});
}

CommitFiles::Found CommitFiles::newest(std::uint64_t not_after_step) const {
  Found found;
  std::vector<Lost> lost;
  std::uint64_t last_intact = 0;
  for (const auto slot : kSlots) {
    std::vector<Repair> repairs;
    auto record = load_record(slot, lost, repairs);
    if (!record) continue;
    auto index = load_index(*record, lost, repairs);
    if (!index) continue;
    const auto number = record->commit.number;
    last_intact = std::max(last_intact, number);
    if (record->commit.step > not_after_step) {
      found.newer_passed_over = true;
      continue;
    }
    found.numbers.push_back(number);
    std::ranges::move(repairs, std::back_inserter(found.repairs));
    if (number < found.record.commit.number) continue;
    found.record = std::move(*record);
    found.index = std::move(*index);
  }
  const bool none = found.numbers.empty();
  for (const auto& file : lost) {
    const bool newer = none || is_newer(file, last_intact);
    if (newer && file.unreadable) std::rethrow_exception(file.unreadable);
    if (!newer && file.missing) continue;  // of an older commit that was being removed
    found.newer_damaged = found.newer_damaged || newer;
    found.damage += "\n  " + file.what;
  }
  if (none) refuse(found, not_after_step);
  return found;
}

void CommitFiles::refuse(const Found& nothing, std::uint64_t not_after_step) const {
  constexpr auto kGoBack = "\n  go back to an exported checkpoint";
  std::string why = "the run has no commit yet\n  a run commits at its end, on a signal, and every `ckpt-interval` steps";
  if (nothing.newer_passed_over) {
    why = fmt::format("there is no commit of step {} or before{}", not_after_step, kGoBack);
  } else if (!nothing.damage.empty()) {
    why = fmt::format("there is no valid commit{}{}, and check the disk", nothing.damage, kGoBack);
  }
  const auto folder = files_.small_path("").parent_path().string();
  throw Error(fmt::format("{}: {}", folder, why), ErrorKind::corrupt, {.path = folder});
}

void CommitFiles::repair(const std::vector<Repair>& repairs, bool durable) const try {
  for (const auto& [name, text] : repairs) files_.write_small({&name, 1}, text, durable);
} catch (const Error& error) {
  files_.log().warn(fmt::format("the copy of a file of a commit could not be written: {}", error.what()));
}

void CommitFiles::remove_others(const std::vector<std::uint64_t>& numbers) const {
  for (const auto& name : files_.names()) {
    const bool named = std::ranges::any_of(
        numbers, [&](auto n) { return is_copy_of(name, index_name(n)) || is_copy_of(name, record_name(n)); });
    if (is_of_a_commit(name) && !named) files_.remove_small(name);
  }
}

void CommitFiles::remove_copies(const std::string& name) const {
  for (const auto& copy : copies_of(name)) files_.remove_small(copy);
}

void CommitFiles::publish(const StoreIndex& index, const Commit& commit, bool durable) const {
  remove_copies(record_name(commit.number));
  if (commit.number > 2) remove_copies(index_name(commit.number - 2));
  if (durable) files_.sync();
  const auto text = write_index(index);
  files_.write_small(copies_of(index_name(commit.number)), text, durable);
  files_.write_small(copies_of(record_name(commit.number)), write_record({commit, checksum_of_text(text)}), durable);
}

void CommitFiles::take_back(bool durable) const {
  for (const auto slot : kSlots) remove_copies(record_name(slot));
  if (durable) files_.sync_folder();
}

// names() is sorted, so records (`commit.`) are removed before indices: an index or data without a record is harmless, a record
// without its data is not.
void CommitFiles::remove_all() const {
  for (const auto& name : files_.names())
    if (is_of_a_commit(name)) files_.remove_small(name);
}

std::vector<CommitFiles::RecordFile> CommitFiles::record_files(const std::filesystem::path& directory) {
  std::vector<RecordFile> all;
  for (const auto slot : kSlots)
    for (const auto& name : copies_of(record_name(slot))) {
      auto& file = all.emplace_back(RecordFile{.path = directory / name});
      try {
        file.text = read_text_file(file.path);
        file.record = parse_record(file.text);
      } catch (const Error& error) {
        file.unreadable = error.what();
      }
    }
  return all;
}

std::optional<Commit> CommitFiles::newest_record(const std::filesystem::path& directory) {
  std::optional<Commit> newest;
  for (auto& file : record_files(directory))
    if (file.record && (!newest || file.record->commit.number > newest->number)) newest = std::move(file.record->commit);
  return newest;
}

bool CommitFiles::only_the_first(const std::filesystem::path& directory) {
  return any_copy(directory, record_name(1)) && any_copy(directory, index_name(1)) && !any_copy(directory, record_name(2));
}

bool CommitFiles::later_index(const std::filesystem::path& directory) {
  std::error_code error;
  return std::ranges::any_of(std::filesystem::directory_iterator(directory, error),
                             [](const auto& entry) { return number_of_index(entry.path().filename().string()) > 1; });
}

bool CommitFiles::any(const std::filesystem::path& directory) {
  return std::ranges::any_of(kSlots, [&](auto slot) { return any_copy(directory, record_name(slot)); });
}

}  // namespace terrace::store
