// terrace bench NAME …: builds the command line from the flags of all benches, and runs the one that was named.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <terrace/bench/bench.h>
#include <terrace/core/base/units.h>
#include <terrace/examples/terrace/base/stop_signal.h>
#include <terrace/examples/terrace/bench/bench_table.h>
#include <terrace/examples/terrace/commands/commands.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/config/parse_words.h>
#include <terrace/examples/terrace/config/setting_flags.h>
#include <terrace/examples/terrace/plan/device.h>

namespace terrace::cli {
namespace {

using bench::Flag;

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 50;  // sums of a few such sizes do not overflow
constexpr std::int64_t kLeastRuns = 3;                        // fewer runs have no useful median

[[noreturn]] void refuse_value(const Flag& flag, const std::string& text, const std::string& accepted,
                               const std::string& command) {
  refuse(fmt::format("--{}: \"{}\" is not accepted: {}", flag.name, text, accepted), command);
}

void assign(const Flag& flag, const std::string& text, const std::string& command) {
  if (auto* const* const number = std::get_if<std::int64_t*>(&flag.target)) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), **number);
    if (error != std::errc{} || end != text.data() + text.size() || **number < flag.least || **number > flag.most)
      refuse_value(flag, text, fmt::format("an integer from {} to {}", flag.least, flag.most), command);
  } else if (auto* const* const size = std::get_if<std::uint64_t*>(&flag.target)) {
    try {
      **size = parse_bytes(text);
    } catch (const Error& error) {
      refuse(fmt::format("--{}: {}", flag.name, error.what()), command);
    }
    if (**size < kPageBytes || **size > kMostBytes) refuse_value(flag, text, "a size from 4KiB to 1024TiB", command);
  } else if (auto* const* const word = std::get_if<std::string*>(&flag.target)) {
    const std::vector<std::string_view> choices(flag.choices.begin(), flag.choices.end());
    if (!choices.empty() && std::ranges::find(choices, text) == choices.end()) {
      const auto near = nearest(text, choices);
      refuse_value(flag, text,
                   fmt::format("one of {}{}", fmt::join(choices, ", "), near.empty() ? "" : "; did you mean " + near + "?"),
                   command);
    }
    **word = text;
  } else if (auto* const* const path = std::get_if<std::filesystem::path*>(&flag.target)) {
    if (text.empty()) refuse_value(flag, text, "a path", command);
    **path = text;
  } else if (auto* const* const several = std::get_if<std::vector<std::filesystem::path>*>(&flag.target)) {
    if (text.empty()) refuse_value(flag, text, "a path", command);
    (*several)->emplace_back(text);
  }
}

std::string default_of(const Flag& flag) {
  if (const auto* const number = std::get_if<std::int64_t*>(&flag.target)) return std::to_string(**number);
  if (const auto* const size = std::get_if<std::uint64_t*>(&flag.target)) return format_bytes(**size);
  if (const auto* const word = std::get_if<std::string*>(&flag.target)) return **word;
  return "";
}

std::string type_of(const Flag& flag) {
  if (std::holds_alternative<std::int64_t*>(flag.target)) return "INT";
  if (std::holds_alternative<std::uint64_t*>(flag.target)) return "SIZE";
  if (!flag.choices.empty()) return fmt::format("{}", fmt::join(flag.choices, "|"));
  return std::holds_alternative<std::filesystem::path*>(flag.target) ? "PATH" : "TEXT";
}

// One bench and its part of the command line.
struct Entry {
  std::unique_ptr<bench::Bench> bench;
  RunConfig config;
  Assignments assignments;

  void add_to(CLI::App& app, const BenchEntry& of, std::vector<Flag> common) {
    auto* const sub = app.add_subcommand(std::string(bench->name()), std::string(bench->help()));
    sub->allow_extras();
    const auto command = fmt::format("bench {}", bench->name());
    auto flags = bench->flags();
    flags.insert(flags.end(), common.begin(), common.end());
    for (const auto& flag : flags) {
      if (auto* const* const given = std::get_if<bool*>(&flag.target)) {
        sub->add_flag("--" + flag.name, **given, flag.help);
        continue;
      }
      if (std::holds_alternative<std::vector<std::filesystem::path>*>(flag.target)) {
        const auto take = [flag, command](const std::vector<std::string>& texts) {
          for (const auto& text : texts) assign(flag, text, command);
        };
        sub->add_option_function<std::vector<std::string>>(flag.name, take, flag.help)->type_name("")->required();
        continue;
      }
      const auto take = [flag, command](const std::string& text) { assign(flag, text, command); };
      sub->add_option_function<std::string>(flag.positional ? flag.name : "--" + flag.name, take, flag.help)
          ->type_name(flag.positional ? "" : type_of(flag))
          ->default_str(flag.positional ? "" : default_of(flag))
          ->required(flag.positional);
    }
    if (!of.takes.empty()) add_options(*sub, assignments, of.takes);
  }
};

// The command line of all benches. It points into `options` and into itself.
struct Benches {
  CLI::App app{"measure disks, memory, computing, and the parts of terrace", "terrace bench"};
  std::vector<Entry> entries = std::vector<Entry>(bench_table().size());
  std::vector<std::string_view> names;

  explicit Benches(bench::Session::Options& options) {
    app.allow_extras();
    const std::vector<Flag> common{
        {"runs", &options.runs, "runs for each figure, which is their median", kLeastRuns, 10'000},
        {"json", &options.json, "print only one JSON object on standard output"},
        {"compare", &options.compare, "an earlier output with --json: also print old, new and ratio"}};
    for (std::size_t i = 0; i < entries.size(); ++i) {
      entries[i].bench = bench_table()[i].make(entries[i].config);
      entries[i].add_to(app, bench_table()[i], common);
      names.push_back(entries[i].bench->name());
    }
  }
};

CommandText describe_bench() {
  bench::Session::Options options;
  return describe_command(Benches(options).app, "bench");
}

Exit run_bench(int argc, const char* const* argv) {
  bench::Session::Options options{
      .terminal = ::isatty(STDERR_FILENO) != 0, .stopped = [] { return stop_signal() != 0; }, .shown = with_flags};
  Benches benches(options);
  auto& [app, entries, names] = benches;
  if (argc > 1 && argv[1][0] != '-' && std::ranges::find(names, std::string_view(argv[1])) == names.end())
    refuse(fmt::format("unknown bench \"{}\"{}", argv[1], suggestion(argv[1], names)), "bench");
  if (const auto answer = parse_words(app, argc, argv, "bench"); !answer.empty()) {
    std::fputs(answer.c_str(), stdout);
    return Exit::ok;
  }
  if (&chosen(app) == &app) refuse(fmt::format("bench needs the name of a bench: {}", fmt::join(names, ", ")), "bench");
  auto& entry = entries[static_cast<std::size_t>(std::ranges::find(names, chosen(app).get_name()) - names.begin())];
  apply_flags(entry.config, entry.assignments);
  find_device(entry.config, 1);
  entry.bench->check();
  bench::Session session(options);

  catch_stop_signals();
  try {
    entry.bench->run(session);
  } catch (const std::exception& error) {
    session.fail(error);
  }
  const auto failure = session.finish();
  return failure ? exit_of(*failure) : Exit::ok;
}

}  // namespace

Command bench_command() {
  return {.name = "bench",
          .help = "measure disks, memory, computing, and the parts of terrace",
          .takes = {"json"},
          .examples = {"terrace bench nvme /mnt/disk", "terrace bench step --layers 12 --hidden 768",
                       "terrace bench all /mnt/disk --json > all.json"},
          .run_words = run_bench,
          .describe = describe_bench};
}

}  // namespace terrace::cli
