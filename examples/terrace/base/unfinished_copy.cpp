#include <terrace/examples/terrace/base/unfinished_copy.h>

#include <algorithm>
#include <array>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <terrace/core/base/files.h>
#include <terrace/core/base/folders.h>
#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/examples/terrace/base/folder_mark.h>
#include <terrace/examples/terrace/data/run_tokenizer.h>
#include <terrace/examples/terrace/run/run_dir.h>
#include <terrace/offload/store/store_folder.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMarkText = "terrace ckpt copy has not finished here: repeat the command\n";

// Whether a copy makes a file of this name.
bool is_copied_file(std::string_view name) {
  name = files::finished_name(name);
  static constexpr std::array<std::string_view, 6> kNames{"config.toml",   "metrics.jsonl", "algorithms.txt",
                                                          "run.copy.json", "run.json",      kUnfinishedCopy};
  return std::ranges::find(kNames, name) != kNames.end();
}

// Also the store that a killed `generate` left there after it gathered the weights of several ranks.
bool is_copied_store(const std::string& name) {
  static const std::regex kStore("store(-rank[0-9]+|-reader[0-9]+\\.temporary)?");
  return std::regex_match(name, kStore);
}

bool is_copied_tokenizer(const fs::path& entry) { return entry.filename() == tokenizer_folder({}); }

// The first entry that no copy makes; empty: none.
std::string foreign_entry(const fs::path& folder) {
  for (const auto& entry : files::entries_of(folder)) {
    const auto name = entry.path().filename().string();
    const auto status = entry.symlink_status();
    if (fs::is_directory(status) && is_copied_tokenizer(entry.path())) {
      if (const auto foreign = foreign_to_tokenizer(entry.path()); !foreign.empty()) return name + "/" + foreign;
      continue;
    }
    if (!(fs::is_directory(status) ? is_copied_store(name) : fs::is_regular_file(status) && is_copied_file(name))) return name;
  }
  return "";
}

// The mark is removed last, so that the removal can be interrupted and repeated, too.
void remove_copied(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : files::entries_of(folder)) {
    if (!entry.is_directory())
      files.push_back(entry.path());
    else if (is_copied_tokenizer(entry.path()))
      remove_tokenizer(entry.path());
    else
      store::remove_store(entry.path());
  }
  for (const auto& file : files)
    if (file.filename() != kUnfinishedCopy) files::remove_path(file);
  files::sync_to_disk(folder);
  files::remove_path(folder / kUnfinishedCopy);
}

bool is_empty_folder(const fs::path& folder) {
  std::error_code error;
  return fs::is_directory(fs::symlink_status(folder, error)) && fs::is_empty(folder, error) && !error;
}

}  // namespace

bool is_unfinished_copy(const fs::path& folder) {
  std::error_code error;
  return is_marked(folder, kUnfinishedCopy) && !fs::exists(folder / "run.json", error);
}

bool is_left_of_a_copy(const fs::path& folder) { return is_unfinished_copy(folder) || is_empty_folder(folder); }

bool is_only_a_copy(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / "run.json", error) && foreign_entry(folder).empty();
}

void remove_mark_of_finished(const fs::path& folder) try {
  if (is_marked(folder, kUnfinishedCopy) && is_only_a_copy(folder)) unmark_folder(folder, kUnfinishedCopy);
} catch (const std::exception&) {  // it means nothing beside run.json, and the next attempt removes it
}

void remove_copy(const fs::path& folder) {
  const auto lock = lock_directory(folder);
  if (const auto foreign = foreign_entry(folder); !foreign.empty())
    throw base::Refused(
        fmt::format("{} is not removed: it also has {}, which is of no copy\n  move that away, and repeat the command",
                    folder.string(), base::printable(foreign)));
  mark_folder(folder, kUnfinishedCopy, kMarkText);
  for (const auto* const name : {"run.json", "run.copy.json"}) files::remove_path(folder / name);
  files::sync_to_disk(folder);
  remove_copied(folder);
  files::remove_path(folder);
  files::sync_to_disk(fs::absolute(folder).parent_path());  // otherwise a power loss brings the mark back
}

UnfinishedCopy::UnfinishedCopy(const fs::path& folder) : folder_(folder) {
  try {
    files::make_folders(folder);
  } catch (const Error& error) {
    throw Error(fmt::format("{} cannot be created: {}\n  give a folder on a file system that can be written", folder.string(),
                            error.what()));
  }
  lock_ = lock_directory(folder, "a folder that does not exist yet");
  if (!files::entries_of(folder).empty()) {
    const bool unfinished = is_unfinished_copy(folder);
    const auto foreign = unfinished ? foreign_entry(folder) : "";
    if (!unfinished || !foreign.empty())
      throw base::Refused(
          fmt::format("{} is not empty{}\n  give a folder that does not exist yet", folder.string(),
                      unfinished ? fmt::format(": it has an unfinished copy, but also {}", base::printable(foreign)) : ""));
    remove_copied(folder);
  }
  mark_folder(folder, kUnfinishedCopy, kMarkText);
}

UnfinishedCopy::~UnfinishedCopy() {
  if (finished_) return;
  try {
    if (is_unfinished_copy(folder_) && foreign_entry(folder_).empty()) remove_copied(folder_);
  } catch (const std::exception&) {  // it stays an unfinished copy, which the next attempt removes
  }
}

void UnfinishedCopy::finish() {
  finished_ = true;
  unmark_folder(folder_, kUnfinishedCopy);
}

}  // namespace terrace::cli
