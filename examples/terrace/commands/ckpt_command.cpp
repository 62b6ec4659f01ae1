// terrace ckpt list|inspect|verify|copy|export|rm: works on the store of a run, without an engine.
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <span>
#include <vector>

#include <CLI/CLI.hpp>

#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/units.h>
#include <terrace/examples/terrace/base/unfinished_copy.h>
#include <terrace/examples/terrace/commands/commands.h>
#include <terrace/examples/terrace/commands/export_command.h>
#include <terrace/examples/terrace/config/parse_words.h>
#include <terrace/examples/terrace/run/embedded_store.h>
#include <terrace/examples/terrace/run/kept_commits.h>
#include <terrace/examples/terrace/run/own_store.h>
#include <terrace/examples/terrace/run/run_dir.h>
#include <terrace/offload/store/common_commit.h>
#include <terrace/offload/store/copy_store.h>
#include <terrace/offload/store/store_folder.h>

namespace terrace::cli {
namespace {

using Stores = std::vector<std::unique_ptr<ChunkStore>>;  // one for each rank of the run

void inspect(const store::CommonCommit& common, bool json) {
  const auto& stores = common.stores;
  const auto commit = stores.front()->last_commit();
  struct Sum {
    std::uint64_t chunks = 0, bytes = 0;
  };
  std::map<std::string, Sum> kinds;
  std::map<std::string, std::uint64_t> tensors;
  std::uint64_t allocated_bytes = 0;
  for (const auto& store : stores) {
    allocated_bytes += store->allocated_bytes();
    for (const auto& c : store->committed()) {
      auto& sum = kinds[std::string(name_of(c.description.kind))];
      ++sum.chunks;
      sum.bytes += c.description.bytes;
      if (c.description.kind == ChunkKind::parameter)
        for (const auto& r : c.description.ranges) tensors[r.tensor] += r.elements * r.rows;
    }
  }
  if (json) {
    nlohmann::json j{{"commit", commit->number}, {"step", commit->step}, {"allocated_bytes", allocated_bytes}};
    if (stores.size() > 1) j["ranks"] = stores.size();
    if (common.newest_step != common.step) j["newest_step"] = common.newest_step;
    for (const auto& [kind, sum] : kinds) j["kinds"][kind] = {{"chunks", sum.chunks}, {"bytes", sum.bytes}};
    for (const auto& [tensor, elements] : tensors) j["tensors"][tensor] = elements;
    fmt::print("{}\n", j.dump(2));
    return;
  }
  fmt::print("commit {} after step {}; {} on disk\n", commit->number, commit->step, format_bytes(allocated_bytes));
  if (stores.size() > 1) fmt::print("these are the stores of {} ranks together\n", stores.size());
  if (common.newest_step != common.step)
    fmt::print("not all ranks have the commit after step {}, so a run cannot resume from it\n", common.newest_step);
  for (const auto& [kind, sum] : kinds) fmt::print("  {:<14} {:>6} chunks {:>12}\n", kind, sum.chunks, format_bytes(sum.bytes));
  fmt::print("{} tensors\n", tensors.size());
  for (const auto& [tensor, elements] : tensors) fmt::print("  {:<60} {:>12}\n", base::printable(tensor), elements);
}

// Reports all damaged chunks, missing stores and damaged files of the tokenizer, not only the first.
// `run`: empty for the store of a program that embeds terrace.
void verify(const Stores& stores, const std::string& missing, const std::filesystem::path& run) {
  std::vector<std::byte> buffer;
  std::uint64_t bytes = 0, chunks = 0, damaged = 0;
  std::string found = missing;
  bool damaged_commit = false;
  const auto note = [&](const std::string& what) { found += (found.empty() || what.empty() ? "" : "\n  ") + what; };
  for (const auto& store : stores) {
    note(store->damage());
    damaged_commit = damaged_commit || !store->damage().empty();
    for (const auto& c : store->committed()) {
      buffer.resize(c.description.bytes);
      try {
        store->read_committed(c, buffer);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::corrupt) throw;
        note(error.what());
        ++damaged;
      }
      bytes += c.description.bytes;
      ++chunks;
    }
  }
  const auto tokenizer = run.empty() ? "" : damaged_tokenizer(run);
  note(tokenizer);
  if (!found.empty())
    throw Error(
        fmt::format("{}\n  {} of {} chunks are damaged{}{}", found, damaged, chunks,
                    damaged_commit ? ", and also files of a commit" : "", tokenizer.empty() ? "" : ", and also the tokenizer"),
        ErrorKind::corrupt);
  fmt::print("verified {} chunks, {}: all checksums are correct\n", chunks, format_bytes(bytes));
}

void list(const std::filesystem::path& run, std::span<const std::filesystem::path> given, bool json) {
  auto all = kept_commits(run);
  if (const auto last = last_step_of(run, given)) {
    std::erase_if(all, [&](const KeptCommit& kept) { return kept.step == *last; });  // the last commit is copied already
    all.push_back({.step = *last, .directory = run});
  }
  if (!json) {
    if (all.empty()) fmt::print("{} has no commit yet\n", base::printable(run.string(), 1000));
    for (const auto& commit : all)
      fmt::print("step {:>8}  {}\n", commit.step, base::printable(commit.directory.string(), 1000));
    return;
  }
  auto out = nlohmann::json::array();
  for (const auto& commit : all) out.push_back({{"step", commit.step}, {"directory", commit.directory.string()}});
  // A path that is not UTF-8 must not end the command.
  fmt::print("{}\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

// Also removes a damaged store, and stores behind a rank whose folder is missing. A store that a live run holds stays.
void remove_stores(const std::filesystem::path& run, std::span<const std::filesystem::path> given) {
  for (const auto& folder : store_folders_of_run(run, given)) store::remove_store(folder);
  remove_kept_commits(run);
  forget_run(run);
}

// Takes the missing stores out of `all` and names them: they are lost, or of ranks on other machines.
std::string take_missing(std::vector<ChunkStore::Options>& all) {
  std::string missing;
  for (std::size_t r = 0; r < all.size(); ++r)
    if (const auto home = all[r].paths.front() / all[r].name; !std::filesystem::exists(home))
      missing +=
          fmt::format("{}the store of rank {}, {}: the directory is missing", missing.empty() ? "" : "\n  ", r, home.string());
  std::erase_if(all, [](const auto& store) { return !std::filesystem::exists(store.paths.front() / store.name); });
  return missing;
}

void demand_all(const std::string& missing) {
  if (!missing.empty())
    throw Error(missing + "\n  bring it back; if that rank ran on another machine, copy its folder here", ErrorKind::corrupt);
}

// Makes a separate run, all in one folder, which --resume can continue.
void copy(const Stores& stores, const ChunkStore::Options& like, const std::filesystem::path& run,
          const std::filesystem::path& to) {
  demand_intact_tokenizer(run);
  UnfinishedCopy copying(to);
  auto own = like;
  own.paths = {to};
  own.read_only = false;
  own.run_ids = {new_run_id()};
  for (std::size_t r = 0; r < stores.size(); ++r) {
    own.name = store_name_of_rank("store", r);
    store::copy_store(*stores[r], own);
  }
  copy_run_files(run, to, own.run_ids.front());  // last, because these files make it a run
  copying.finish();
}

Exit run_ckpt(const CommandLine& line) {
  const auto& action = line.positional.at(0);
  const auto& of = line.positional.at(1);
  const bool names_step = line.step >= 0;
  const auto step = names_step ? static_cast<std::uint64_t>(line.step) : 0;
  if (action == "rm" && names_step && remove_kept_commit(of, step)) {
    fmt::print("removed the commit after step {} of {}\n", step, of);
    return Exit::ok;
  }
  const auto& given = line.config.memory.nvme_path;
  const auto run = names_step ? directory_of_commit(of, given, step).string() : of;
  if (action == "rm" && names_step)
    throw base::Refused(
        fmt::format("the commit after step {} is the last one of {}, from which it continues\n  terrace ckpt rm {} "
                    "without --step removes all of them",
                    step, of, of));
  if (action == "rm") {
    remove_stores(run, given);
    fmt::print("removed the store of {}; its metrics and report were kept\n", run);
    return Exit::ok;
  }
  if (action == "list") {
    list(run, given, line.config.run.json);
    return Exit::ok;
  }
  if (action == "export") {
    export_model(run, given, line.positional.at(2), line.merge ? Adapted::merged : Adapted::alone);
    return Exit::ok;
  }
  const auto embedded = action == "copy" ? std::nullopt : embedded_store(run, given);
  auto all = embedded ? std::vector{*embedded} : stores_of_run(run, given);
  const auto missing = take_missing(all);
  if (action != "verify" || all.empty()) demand_all(missing);
  for (auto& options : all) options.read_only = true;
  const auto common = store::open_at_common_commit(all);
  const auto& stores = common.stores;
  if (action == "inspect") inspect(common, line.config.run.json);
  if (action == "verify") verify(stores, missing, embedded ? "" : run);
  if (action == "copy") {
    const auto& to = line.positional.at(2);
    copy(stores, all.front(), run, to);
    fmt::print("copied {} after step {} to {}; continue the copy with --resume {}\n", run, common.step, to, to);
  }
  return Exit::ok;
}

void add_ckpt_options(CLI::App& sub, CommandLine& out) {
  sub.add_option("arguments", out.positional, "what to do, then the run directory; for copy and export also the new directory")
      ->type_name("list|inspect|verify|copy|export|rm RUN [NEW]");
  sub.add_flag(
      "--merge", out.merge,
      "export the whole model of a run with --lora-rank: the adapters merged into the weights, not the adapters alone");
  sub.add_option("--step", out.step, "the commit after this step, one that ckpt list shows, and not the last one")
      ->type_name("STEP");
}

void check_ckpt(const CommandLine& line) {
  const auto& words = line.positional;
  static constexpr std::array<std::string_view, 6> kActions{"list", "inspect", "verify", "copy", "export", "rm"};
  if (words.empty()) refuse("ckpt needs an action (list, inspect, verify, copy, export or rm) and a run directory", "ckpt");
  if (std::ranges::find(kActions, words[0]) == kActions.end()) {
    refuse(fmt::format("ckpt: unknown action \"{}\"{}", words[0], suggestion(words[0], kActions)), "ckpt");
  }
  if (words.size() < 2) refuse(fmt::format("ckpt {} needs a run directory", words[0]), "ckpt");
  const bool makes = words[0] == "copy" || words[0] == "export";
  const std::size_t most = makes ? 3 : 2;
  if (makes && words.size() < most)
    refuse(fmt::format("ckpt {} needs a second directory, for what it writes", words[0]), "ckpt");
  if (words.size() > most) refuse(fmt::format("unexpected argument \"{}\"", words[most]), "ckpt");
}

}  // namespace

Command ckpt_command() {
  return {.name = "ckpt",
          .help = "list, verify, copy, export or remove commits of a run",
          .takes = {"nvme-path", "json"},
          .examples = {"terrace ckpt list runs/mine", "terrace ckpt verify runs/mine --step 100",
                       "terrace ckpt export runs/mine mine-hf"},
          .add_options = add_ckpt_options,
          .check = check_ckpt,
          .run = run_ckpt};
}

}  // namespace terrace::cli
