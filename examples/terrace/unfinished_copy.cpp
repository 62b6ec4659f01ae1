#include <terrace/examples/terrace/unfinished_copy.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <terrace/core/error.h>
#include <terrace/core/printable.h>
#include <terrace/examples/terrace/run_dir.h>
#include <terrace/offload/store_folder.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;

// All that a copy makes before run.json, except the stores.
bool is_copied_file(std::string_view name) {
  if (name.ends_with(".tmp")) name.remove_suffix(4);
  static constexpr std::array<std::string_view, 6> kNames{"config.toml",   "metrics.jsonl", "algorithms.txt",
                                                          "run.copy.json", "run.json",      kUnfinishedCopy};
  return std::ranges::find(kNames, name) != kNames.end();
}

// And what a killed `generate` left there, which gathered the weights of several ranks.
bool is_copied_store(const std::string& name) {
  static const std::regex kStore("store(-rank[0-9]+|-reader[0-9]+\\.temporary)?");
  return std::regex_match(name, kStore);
}

// The name of the first entry that no copy makes; empty: none.
std::string foreign_entry(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto name = entry.path().filename().string();
    const auto status = entry.symlink_status();
    const bool ours = fs::is_directory(status) ? is_copied_store(name) : fs::is_regular_file(status) && is_copied_file(name);
    if (!ours) return name;
  }
  return "";
}

// The mark goes last, so that this can be interrupted and repeated too.
void remove_copied(const fs::path& folder) {
  std::vector<fs::path> stores, files;
  for (const auto& entry : fs::directory_iterator(folder)) (entry.is_directory() ? stores : files).push_back(entry.path());
  for (const auto& store : stores) remove_store(store);
  for (const auto& file : files)
    if (file.filename() != kUnfinishedCopy) fs::remove(file);
  fs::remove(folder / kUnfinishedCopy);
}

// Without a temporary file: its name alone is the mark, so that there is no moment between an empty folder and a marked one.
void mark(const fs::path& folder) {
  const auto file = open_regular(folder / kUnfinishedCopy, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, AT_FDCWD, 0644);
  if (!file) throw Error(describe_errno(errno));
  write_all(file.get(), "terrace ckpt copy has not finished here: repeat the command\n");
  sync_to_disk(folder / kUnfinishedCopy);
  sync_to_disk(folder);
}

}  // namespace

bool is_unfinished_copy(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(fs::symlink_status(folder / kUnfinishedCopy, error)) && !fs::exists(folder / "run.json", error);
}

bool is_only_a_copy(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / "run.json", error) && foreign_entry(folder).empty();
}

void remove_copy(const fs::path& folder) {
  const auto lock = lock_directory(folder);
  if (!fs::exists(folder / kUnfinishedCopy)) mark(folder);
  for (const auto* const name : {"run.json", "run.copy.json"}) fs::remove(folder / name);
  sync_to_disk(folder);
  remove_copied(folder);
  fs::remove(folder);
}

UnfinishedCopy::UnfinishedCopy(const fs::path& folder) : folder_(folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw Error(fmt::format("{} cannot be created: {}\n  give a folder on a file system that can be written", folder.string(),
                            describe_errno(error.value())));
  lock_ = lock_directory(folder, "a folder that does not exist yet");
  if (!fs::is_empty(folder)) {
    const bool unfinished = is_unfinished_copy(folder);
    const auto foreign = unfinished ? foreign_entry(folder) : "";
    if (!unfinished || !foreign.empty())
      throw Error(fmt::format("{} is not empty{}\n  give a folder that does not exist yet", folder.string(),
                              unfinished ? fmt::format(": it has an unfinished copy, but also {}", printable(foreign)) : ""),
                  Exit::usage);
    remove_copied(folder);
  }
  try {
    mark(folder);
  } catch (const Error& problem) {
    throw Error(fmt::format("{} cannot be written: {}\n  give a folder on a file system that can be written", folder.string(),
                            problem.what()));
  }
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
  fs::remove(folder_ / kUnfinishedCopy);
}

}  // namespace terrace::cli
