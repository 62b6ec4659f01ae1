// terrace tokenize FILES… --tokenizer FILE --out FILE: turns text into files of token ids.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <terrace/core/base/notice.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/units.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/examples/lm/tokenizer/tokenize_job.h>
#include <terrace/examples/lm/tokenizer/tokenizer.h>
#include <terrace/examples/terrace/base/output_file.h>
#include <terrace/examples/terrace/base/stop_signal.h>
#include <terrace/examples/terrace/commands/commands.h>
#include <terrace/examples/terrace/config/parse_words.h>
#include <terrace/examples/terrace/data/run_tokenizer.h>

namespace terrace::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kRecordEvery = std::chrono::seconds(5);

struct Words {
  std::vector<std::string> files;
  std::string tokenizer, out, format = "auto", separator = "auto", field = "text";
  bool added = false;
  int threads = 0;
};

constexpr const char* kAboutTokenize = "write the tokens of text to files for training";

void add_options(CLI::App& app, Words& words) {
  app.add_option(
         "files", words.files,
         "files of text, each one document; .jsonl and .ndjson: a JSON object in each line; also packed by gzip or zstd")
      ->type_name("FILE...");
  app.add_option("--tokenizer", words.tokenizer, "the tokenizer.json or tokenizer.model")->type_name("FILE");
  app.add_option("--out", words.out, "the file to write; with megatron OUT.bin and OUT.idx")->type_name("FILE");
  app.add_option("--format", words.format,
                 "ids of two or four bytes, or with the header of llm.c, or with the index of Megatron; auto: u16, or u32 if "
                 "ids need it")
      ->check(CLI::IsMember({"auto", "u16", "u32", "llm.c", "megatron"}))
      ->capture_default_str();
  app.add_option("--separator", words.separator,
                 "the token after each document (with llm.c before it), or none; auto: <|endoftext|>, <|end_of_text|> or </s>")
      ->type_name("TOKEN")
      ->capture_default_str();
  app.add_option("--field", words.field, "the text's name in a JSON object")->capture_default_str();
  app.add_flag("--match-added", words.added,
               "special and added tokens in the text become these tokens; without it, they are text");
  app.add_option("--threads", words.threads, "threads; 0: one for each core")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
}

std::optional<lm::TokenId> separator_of(const Words& words, const lm::Tokenizer& tokenizer) {
  if (words.separator == "none") return {};
  const bool usual = words.separator == "auto";
  if (const auto id = usual ? lm::usual_separator(tokenizer) : tokenizer.id_of(words.separator)) return id;
  throw base::Refused(fmt::format("the tokenizer {} has no token {}\n  give --separator one of its tokens, or none",
                                  words.tokenizer, usual ? "<|endoftext|>" : words.separator));
}

lm::TokenizeSettings settings_of(const Words& words, const lm::Tokenizer& tokenizer) {
  lm::TokenizeSettings settings;
  settings.inputs.assign(words.files.begin(), words.files.end());
  settings.out = words.out;
  settings.kind = tokenizer.ids() > std::size_t{1} << 16U ? lm::TokenFile::u32 : lm::TokenFile::u16;
  for (const auto kind : {lm::TokenFile::u16, lm::TokenFile::u32, lm::TokenFile::llm_c, lm::TokenFile::megatron})
    if (words.format == lm::name_of(kind)) settings.kind = kind;
  settings.field = words.field;
  settings.separator = separator_of(words, tokenizer);
  settings.separator_first = settings.kind == lm::TokenFile::llm_c;
  settings.finds_added = words.added;
  return settings;
}

// No input may have the name of an output; a Megatron file has two names.
void demand_outputs(const Words& words, const lm::TokenizeSettings& settings) {
  auto read = words.files;
  read.push_back(words.tokenizer);
  const auto beside = std::filesystem::path(words.tokenizer).parent_path();
  for (const auto* const name : lm::kTokenizerFiles) read.push_back((beside / name).string());
  const auto unfinished = lm::TokenizeJob::unfinished_files(settings);
  std::vector<std::string> outs{words.out};
  if (settings.kind == lm::TokenFile::megatron) outs = {words.out + ".bin", words.out + ".idx"};
  for (const auto& out : outs) {
    demand_output(out, read, unfinished);
    demand_regular(out);
  }
}

void show(const lm::TokenizeProgress& done, Clock::duration time, std::uint64_t from, bool last) {
  const double seconds = std::chrono::duration<double>(time).count();
  const double rate = seconds > 0 ? static_cast<double>(done.bytes - from) / seconds / 1e6 : 0;
  base::say(
      stderr,
      fmt::format(
          "{}{:.1f} % of {}, {} tokens, {} documents, {:.0f} MB/s{}", ::isatty(STDERR_FILENO) != 0 ? "\r" : "",
          done.bytes_in_all == 0 ? 100.0 : 100.0 * static_cast<double>(done.bytes) / static_cast<double>(done.bytes_in_all),
          format_bytes(done.bytes_in_all), done.tokens, done.documents, rate,
          last || ::isatty(STDERR_FILENO) == 0 ? "\n" : "   "));
}

CommandText describe_tokenize() {
  Words words;
  CLI::App app(kAboutTokenize);
  add_options(app, words);
  return describe_command(app, "tokenize");
}

Exit run_tokenize(int argc, const char* const* argv) {
  Words words;
  CLI::App app(kAboutTokenize, "terrace tokenize");
  add_options(app, words);
  app.allow_extras();
  if (const auto answer = parse_words(app, argc, argv, "tokenize"); !answer.empty()) {
    std::fputs(answer.c_str(), stdout);
    return Exit::ok;
  }
  if (words.files.empty()) refuse("tokenize needs files with text", "tokenize");
  if (words.tokenizer.empty()) refuse("tokenize needs --tokenizer FILE", "tokenize");
  if (words.out.empty()) refuse("tokenize needs --out FILE", "tokenize");

  catch_stop_signals();
  const auto tokenizer = lm::Tokenizer::read(words.tokenizer);
  ThreadPool pool(words.threads);
  const auto settings = settings_of(words, tokenizer);
  demand_outputs(words, settings);
  lm::TokenizeJob job(settings, tokenizer, pool);
  const auto begin = Clock::now();
  const auto begun = job.progress();
  const auto from = begun.bytes;
  const auto step = [&] {
    try {
      return job.step();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::refused || job.progress().tokens == begun.tokens) throw;
      job.record();
      throw Error(fmt::format("{}; then the same command goes on from there", error.what()), error);
    }
  };
  for (auto recorded = begin; step();) {
    if (stop_signal() != 0) {
      job.record();
      base::say(stderr, fmt::format("stopped by {}; the same command goes on from here\n", describe_stop(stop_signal())));
      return Exit::interrupted;
    }
    if (Clock::now() - recorded < kRecordEvery) continue;
    job.record();
    recorded = Clock::now();
    show(job.progress(), recorded - begin, from, false);
  }
  job.finish();
  const auto done = job.progress();
  show(done, Clock::now() - begin, from, true);
  fmt::print("{}: {} tokens of {} documents, format {}, --vocab {}\n", words.out, done.tokens, done.documents,
             lm::name_of(settings.kind), tokenizer.ids());
  return Exit::ok;
}

}  // namespace

Command tokenize_command() {
  return {.name = "tokenize",
          .help = "write the tokens of text to files for training",
          .takes = {"json"},
          .examples = {"terrace tokenize book.txt --tokenizer tokenizer.json --out book.bin",
                       "terrace tokenize a.jsonl b.jsonl --tokenizer tokenizer.json --out ab.bin"},
          .run_words = run_tokenize,
          .describe = describe_tokenize};
}

}  // namespace terrace::cli
