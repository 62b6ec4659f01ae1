#include <terrace/examples/terrace/token_cache.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <set>
#include <thread>

#include <fmt/format.h>

#include <terrace/core/error.h>
#include <terrace/core/file_lock.h>
#include <terrace/core/files.h>
#include <terrace/core/folders.h>
#include <terrace/core/machine.h>
#include <terrace/core/notice.h>
#include <terrace/core/thread_pool.h>
#include <terrace/core/units.h>
#include <terrace/examples/lm/tokenizer/tokenize_job.h>
#include <terrace/examples/lm/tokenizer/tokenizer.h>
#include <terrace/examples/terrace/data_sources.h>
#include <terrace/examples/terrace/run_tokenizer.h>
#include <terrace/examples/terrace/same_settings.h>
#include <terrace/offload/chunk_store.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;

// Held while a file is made. A process that is killed leaves a lock that nobody has, and what the next one goes on from.
FileHandle locked(const fs::path& file) {
  constexpr auto kBetween = std::chrono::milliseconds(50);
  constexpr int kSaysSo = 100;
  FileHandle lock(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock)
    throw Error(
        fmt::format("{} cannot be made: {}\n  make room there, or set XDG_CACHE_HOME", file.string(), describe_errno(errno)));
  for (int waited = 0;; ++waited) {
    const auto state = try_lock(lock.get(), LOCK_EX);
    if (state == Locked::impossible) warn_without_locks(file);
    if (state != Locked::by_another) return lock;
    if (waited == kSaysSo)
      say(stderr, fmt::format("another process makes these tokens and holds {}: waiting for it\n", file.string()));
    std::this_thread::sleep_for(kBetween);
  }
}

void make(const fs::path& text, const fs::path& ids, lm::TokenFile kind, const lm::Tokenizer& tokenizer, ThreadPool& pool) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kRecordEvery = std::chrono::seconds(5);
  lm::TokenizeSettings settings;
  settings.inputs = {text};
  settings.out = ids;
  settings.kind = kind;
  settings.separator = lm::usual_separator(tokenizer);
  std::optional<lm::TokenizeJob> job;
  try {
    job.emplace(settings, tokenizer, pool);
  } catch (const Error&) {  // what is left of another start, which gave the file another name, or of another version
    for (const auto& left : lm::TokenizeJob::unfinished_files(settings)) remove_path(left);
    job.emplace(settings, tokenizer, pool);
  }
  for (auto recorded = Clock::now(); job->step();) {
    if (Clock::now() - recorded < kRecordEvery) continue;
    job->record();
    recorded = Clock::now();
    const auto done = job->progress();
    say(stderr,
        fmt::format("tokenizing {}: {} of {}\n", text.string(), format_bytes(done.bytes), format_bytes(done.bytes_in_all)));
  }
  job->finish();
}

// Of a large file a sample and its time: reading all of it at each start would take long, and a copy is only tokenized again.
std::string content_of(const fs::path& file) {
  constexpr std::uint64_t kWhole = kGiB, kSample = 256 * kMiB;
  if (fs::file_size(file) <= kWhole) return describe_content(file, kUnlimited);
  return fmt::format("{} written {}", describe_content(file, kSample), fs::last_write_time(file).time_since_epoch().count());
}

}  // namespace

void make_token_files(RunConfig& config) {
  if (config.data_format != kText) return;
  const auto file = tokenizer_of(config);
  const auto tokenizer = read_tokenizer(file, config);
  const bool wide = tokenizer.ids() > std::size_t{1} << 16U;
  config.token_format = wide ? "u32" : "u16";
  const auto folder = default_profile_path("cpu").parent_path() / "tokens";
  make_folders(folder);
  std::optional<ThreadPool> pool;
  std::set<fs::path> texts;
  for (const auto& c : {config, of_evaluation(config)})
    for (const auto& text : data_files(c)) texts.insert(text);
  // All that decides the ids, and a number to be raised when the same would give others.
  constexpr int kVersion = 1;
  const auto separator = lm::usual_separator(tokenizer);
  const auto of_tokenizer = fmt::format("{} {} {}", kVersion, separator ? std::int64_t{*separator} : -1, tokenizer.text());
  for (const auto& text : texts) {
    const auto content = of_tokenizer + content_of(text);
    const auto name =
        fmt::format("{}-{:016x}.{}", text.stem().string(), checksum_of(std::as_bytes(std::span(content))), config.token_format);
    const auto ids = folder / name;
    const auto lock = locked(folder / (name + ".lock"));
    if (std::error_code error; !fs::exists(ids, error)) {
      if (!pool) pool.emplace(static_cast<int>(config.threads));
      make(text, ids, wide ? lm::TokenFile::u32 : lm::TokenFile::u16, tokenizer, *pool);
    }
    config.token_files[text.string()] = ids;
  }
}

lm::TokenFormat format_of_tokens(const RunConfig& config) {
  return lm::token_format(config.data_format == kText ? config.token_format : config.data_format, config.vocab);
}

}  // namespace terrace::cli
