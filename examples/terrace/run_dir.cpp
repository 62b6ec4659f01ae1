#include <terrace/examples/terrace/run_dir.h>

#include <fmt/format.h>

#include <cerrno>
#include <fstream>

#include <terrace/core/error.h>
#include <terrace/examples/terrace/command_line.h>
#include <terrace/examples/terrace/options.h>
#include <terrace/examples/terrace/setup.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;
constexpr const char* kRunFile = "run.json";
constexpr const char* kResultFile = "result.json";

std::string read_text(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw Error(fmt::format("{} cannot be read: {}", file.string(), describe_errno(errno)));
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_text(const fs::path& file, const std::string& text) {
  // Written beside and renamed: a reader sees the old file or the new one, whole.
  const auto beside = fs::path(file).concat(".tmp");
  std::ofstream out(beside, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) throw Error(fmt::format("{} cannot be written: {}", beside.string(), describe_errno(errno)));
  fs::rename(beside, file);
}

nlohmann::json read_json(const fs::path& file) {
  try {
    return nlohmann::json::parse(read_text(file));
  } catch (const nlohmann::json::exception& e) {
    throw Error(fmt::format("{} is not what a run writes: {}", file.string(), e.what()), Exit::corrupt);
  }
}

ChunkStore::Options stored_options(const nlohmann::json& run) {
  ChunkStore::Options o;
  for (const auto& path : run.at("store_paths")) o.paths.emplace_back(path.get<std::string>());
  o.name = run.at("store_name").get<std::string>();
  return o;
}

}  // namespace

void write_json(const fs::path& file, const nlohmann::json& value) { write_text(file, value.dump(2) + "\n"); }

RunDir open_run_dir(RunConfig& config) {
  if (config.resume != "auto" && config.resume != "never") {
    config.out_dir = config.resume;
    if (!fs::exists(config.out_dir / kRunFile))
      throw Error(fmt::format("--resume {}: there is no run in that directory", config.resume), Exit::usage);
  }
  RunDir dir{.path = config.out_dir, .store = store_options(config), .resume = false, .result = {}};
  std::error_code error;
  const bool used = fs::exists(dir.path, error) && !fs::is_empty(dir.path, error);
  if (used && config.resume == "never")
    throw Error(fmt::format("{} is not empty: --resume auto goes on with the run in it, another --out-dir starts a new one",
                            dir.path.string()),
                Exit::usage);
  fs::create_directories(dir.path, error);
  if (error) throw Error(fmt::format("run directory {} cannot be made: {}", dir.path.string(), error.message()));

  const auto now = fingerprint(config);
  if (fs::exists(dir.path / kRunFile)) {
    const auto run = read_json(dir.path / kRunFile);
    dir.store = stored_options(run);
    dir.resume = ChunkStore::has_commit(dir.store);
    const auto difference = describe_difference(run.at("fingerprint"), now);
    if (dir.resume && !difference.empty() && !config.force)
      throw Error(fmt::format("{} holds a run with another model, data or seed; --force resumes it all the same:\n{}",
                              dir.path.string(), difference),
                  Exit::usage);
    if (dir.resume && fs::exists(dir.path / kResultFile)) {
      auto result = read_json(dir.path / kResultFile);
      if (result.value("steps", std::int64_t{0}) >= config.steps) dir.result = std::move(result);
    }
  }
  if (dir.result) return dir;
  if (!dir.resume) dir.store = store_options(config);
  write_text(dir.path / kConfigFile, to_toml(config));
  nlohmann::json paths = nlohmann::json::array();
  for (const auto& path : dir.store.paths) paths.push_back(fs::absolute(path).string());
  write_json(dir.path / kRunFile, {{"fingerprint", now}, {"store_paths", paths}, {"store_name", dir.store.name}});
  fs::remove(dir.path / kResultFile, error);
  return dir;
}

ExistingRun read_run_dir(const fs::path& path) {
  if (!fs::exists(path / kRunFile)) throw Error(fmt::format("{} holds no run", path.string()), Exit::usage);
  ExistingRun run;
  apply_file(run.config, path / kConfigFile);
  run.store = stored_options(read_json(path / kRunFile));
  return run;
}

void write_result(const RunDir& dir, const nlohmann::json& result) { write_json(dir.path / kResultFile, result); }

}  // namespace terrace::cli
