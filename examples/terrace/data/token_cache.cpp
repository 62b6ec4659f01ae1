#include <terrace/examples/terrace/data/token_cache.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/files.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/examples/lm/tokenizer/tokenize_job.h>
#include <terrace/examples/lm/tokenizer/tokenizer.h>
#include <terrace/examples/lm/unpack/data_stream.h>
#include <terrace/examples/terrace/base/user_cache.h>
#include <terrace/examples/terrace/data/data_sources.h>
#include <terrace/examples/terrace/data/run_tokenizer.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;

void make_ids(const fs::path& text, const fs::path& ids, lm::TokenFile kind, const lm::Tokenizer& tokenizer, ThreadPool& pool) {
  lm::TokenizeSettings settings;
  settings.inputs = {text};
  settings.out = ids;
  settings.kind = kind;
  settings.separator = lm::usual_separator(tokenizer);
  std::optional<lm::TokenizeJob> job;
  try {
    job.emplace(settings, tokenizer, pool);
  } catch (const Error&) {  // unfinished files are left of another version, or of a start that gave the text another name
    for (const auto& left : lm::TokenizeJob::unfinished_files(settings)) files::remove_path(left);
    job.emplace(settings, tokenizer, pool);
  }
  for (MakingNote note("tokenizing", text); job->step();)
    if (const auto done = job->progress(); note(done.bytes, done.bytes_in_all)) job->record();
  job->finish();
}

void unpack(const fs::path& packed, const fs::path& to) {
  constexpr std::size_t kAtOnce = std::size_t{1} << 20;
  lm::DataStream in(packed);
  const auto written = [&](const auto& write) {
    try {
      write();
    } catch (const Error& error) {
      throw Error(fmt::format("{} cannot be written: {}\n  make room there, or set XDG_CACHE_HOME", to.string(), error.what()));
    }
  };
  std::optional<files::NewFile> out;
  written([&] { out.emplace(to, 0600); });
  MakingNote note("unpacking", packed);
  for (;;) {
    const auto bytes = in.peek(kAtOnce);
    if (bytes.empty()) break;
    written([&] { out->write(bytes); });
    in.skip(bytes.size());
    note(in.file_place(), in.file_bytes());
  }
  written([&] { out->finish(files::Durable::yes); });
}

std::set<fs::path> all_files(const RunConfig& config) {
  std::set<fs::path> all;
  for (const auto& c : {config, of_evaluation(config)})
    for (const auto& file : data_files(c)) all.insert(file);
  return all;
}

}  // namespace

void make_token_files(RunConfig& config) {
  if (config.data.format == DataFormat::conversations) return;
  const auto files = all_files(config);
  const auto make_once = [&](const fs::path& data, const std::string& decides, const std::string& ending, const auto& make) {
    const CachedFile made(data, decides, ending);
    const auto lock = made.lock();
    if (std::error_code error; !fs::exists(made.path(), error)) {
      make(data, made.path());
      made.demand_same_data();
    }
    config.found.token_files[data.string()] = made.path();
  };
  if (config.data.format != DataFormat::text) {
    for (const auto& file : files)
      if (lm::is_packed(file)) make_once(file, "unpacked ", lm::name_of_content(file).extension().string(), unpack);
    return;
  }
  const auto file = tokenizer_of(config);
  const auto tokenizer = read_tokenizer(file, config);
  const bool wide = tokenizer.ids() > std::size_t{1} << 16U;
  config.found.token_format = wide ? DataFormat::u32 : DataFormat::u16;
  std::optional<ThreadPool> pool;
  // Everything that decides the ids. kVersion is raised when the same inputs give other ids.
  constexpr int kVersion = 1;
  const auto separator = lm::usual_separator(tokenizer);
  const auto decides = fmt::format("{} {} {}", kVersion, separator ? std::int64_t{*separator} : -1, tokenizer.text());
  for (const auto& text : files)
    make_once(text, decides, fmt::format(".{}", word_of(config.found.token_format)),
              [&](const fs::path& from, const fs::path& ids) {
                if (!pool) pool.emplace(static_cast<int>(config.run.threads));
                make_ids(from, ids, wide ? lm::TokenFile::u32 : lm::TokenFile::u16, tokenizer, *pool);
              });
}

bool has_token_files(const RunConfig& config) {
  if (!config.found.token_files.empty()) return true;
  return config.data.format != DataFormat::text && std::ranges::none_of(all_files(config), lm::is_packed);
}

lm::TokenFormat format_of_tokens(const RunConfig& config) {
  return lm::token_format(word_of(config.data.format == DataFormat::text ? config.found.token_format : config.data.format),
                          config.model.vocab);
}

}  // namespace terrace::cli
