#include <terrace/bench/session.h>

#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <terrace/bench/old_results.h>
#include <terrace/core/base/notice.h>
#include <terrace/core/base/trace.h>
#include <terrace/core/base/units.h>
#include <terrace/core/machine/machine.h>

namespace terrace::bench {
namespace {

constexpr std::int64_t kDrawEvery_ns = 100'000'000;
constexpr std::array<std::string_view, 3> kOnlyJson{"fio", "gdsio", "nvbandwidth"};

// Converts a key to a table heading: "gb_per_s" to "GB/s".
std::string heading(const std::string& key) {
  static const std::vector<std::pair<std::string, std::string>> known{{"block_bytes", "block"},
                                                                      {"copy_bytes", "copy"},
                                                                      {"host_memory", "host memory"},
                                                                      {"numa_node", "node"},
                                                                      {"latency_us", "µs"},
                                                                      {"queue_depth", "depth"},
                                                                      {"gb_per_s", "GB/s"},
                                                                      {"iops", "IOPS"},
                                                                      {"p50_us", "p50 µs"},
                                                                      {"p99_us", "p99 µs"},
                                                                      {"p999_us", "p99.9 µs"},
                                                                      {"cpu_s_per_gib", "CPU s/GiB"},
                                                                      {"gflop_per_s", "GFLOP/s"},
                                                                      {"other_gb_per_s", "its GB/s"},
                                                                      {"other_gflop_per_s", "its GFLOP/s"},
                                                                      {"other_share", "its share"},
                                                                      {"params_per_s", "Mparam/s"},
                                                                      {"fraction_of_stream", "of stream"},
                                                                      {"array_bytes", "array"},
                                                                      {"read_bytes", "read"},
                                                                      {"write_bytes", "written"},
                                                                      {"upload_bytes", "uploaded"},
                                                                      {"download_bytes", "downloaded"}};
  const auto at = std::ranges::find(known, key, &std::pair<std::string, std::string>::first);
  return at == known.end() ? key : at->second;
}

std::string cell(const std::string& key, const Result& value) {
  if (value.is_null()) return "-";
  if (value.is_string()) return value.get<std::string>();
  if (key.ends_with("_bytes")) return format_bytes(value.get<std::uint64_t>());
  if (value.is_number_integer()) return fmt::format("{}", value.get<std::int64_t>());
  if (!value.is_number()) return value.dump();
  const auto number = value.get<double>();
  if (key == "spread" || key == "hit_rate") return fmt::format("{:.1f} %", 100 * number);
  if (key == "params_per_s") return fmt::format("{:.1f}", number * 1e-6);
  if (key == "cpu_s_per_gib") return fmt::format("{:.4f}", number);
  return number >= 1000 ? fmt::format("{:.0f}", number) : fmt::format("{:.4g}", number);
}

// fmt counts bytes where a terminal counts columns; µ has two bytes.
std::string padded(const std::string& text, std::size_t width) {
  const auto columns = static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
  return std::string(width > columns ? width - columns : 0, ' ') + text;
}

std::size_t width_of(const std::string& key, const Result& value) {
  constexpr std::size_t kName = 14, kMostOverhang = 2, kLongName = 26, kFigure = 11;
  if (key == "op")
    return value.is_string() && value.get_ref<const std::string&>().size() > kName + kMostOverhang ? kLongName : kName;
  return key == "policy" || key == "recipe" ? kName : kFigure;
}

bool in_table(const std::string& key, const Result& value) {
  return !value.is_structured() && std::ranges::find(kOnlyJson, key) == kOnlyJson.end();
}

}  // namespace

Session::Session(Options options) : options_(std::move(options)), machine_(machine_facts()) {
  if (!options_.compare.empty())
    old_ = read_results(options_.compare, "--compare needs a file that terrace bench … --json has written");
}

Session::~Session() { erase_progress(); }

void Session::print_row(const Result& row) {
  if (options_.json) return;
  std::string header, line;
  for (const auto& [key, value] : row.items()) {
    if (!in_table(key, value)) continue;
    header += padded(heading(key), width_of(key, value)) + " ";
    line += padded(cell(key, value), width_of(key, value)) + " ";
  }
  if (header != header_) base::say(options_.out, fmt::format("{}{}\n", header_.empty() ? "" : "\n", header));
  header_ = header;
  base::say(options_.out, fmt::format("{}\n", line));
  std::fflush(options_.out);
}

void Session::result(Result result) {
  erase_progress();
  print_row(result);
  if (!bench_.empty()) {
    Result named{{"bench", bench_}};
    named.update(result);
    result = std::move(named);
  }
  results_.push_back(std::move(result));
}

void Session::note(std::string_view text) {
  if (options_.json) return;
  erase_progress();
  base::say(options_.out, fmt::format("{}\n", shown(text)));
  std::fflush(options_.out);
}

void Session::warn(std::string_view text) {
  erase_progress();
  base::say(options_.notes, fmt::format("warning: {}\n", shown(text)));
}

void Session::progress(std::string_view text) {
  if (!options_.terminal) return;
  const auto now = now_ns();
  if (line_drawn_ && now - drawn_ns_ < kDrawEvery_ns) return;
  drawn_ns_ = now;
  base::say(options_.notes, fmt::format("\r\033[K{}", text));
  std::fflush(options_.notes);
  line_drawn_ = true;
}

void Session::fail(const std::exception& error) {
  erase_progress();
  base::say(options_.notes, fmt::format("error: {}\n", shown(error.what())));
  const auto* const known = dynamic_cast<const Error*>(&error);
  if (!failure_) failure_ = known ? known->kind() : ErrorKind::failed;
}

Result Session::compared() {
  const auto all = compare_results(old_, {{"machine", machine_}, {"results", results_}});
  note(fmt::format("\nbeside {}: tests in both: {}, only there: {}, only here: {}", options_.compare.string(), all.rows.size(),
                   all.only_old, all.only_new));
  for (const auto& [key, values] : all.machine.items())
    note(fmt::format("  {} was {}, is {}", key, cell(key, values[0]), cell(key, values[1])));
  auto rows = Result::array();
  for (const auto& one : all.rows) {
    auto row = one.test;
    row["figure"] = one.figure;
    row["old"] = one.old;
    row["new"] = one.now;
    row["ratio"] = one.ratio();
    auto shown = row;
    shown["figure"] = heading(one.figure);
    shown["beyond"] = one.beyond_spread ? "spread" : "-";
    print_row(shown);
    row["beyond_spread"] = one.beyond_spread;
    rows.push_back(std::move(row));
  }
  return {{"file", options_.compare.string()},
          {"machine", all.machine},
          {"only_old", all.only_old},
          {"only_new", all.only_new},
          {"rows", rows}};
}

std::optional<ErrorKind> Session::finish() {
  erase_progress();
  const auto comparison = old_.is_null() ? Result() : compared();
  if (options_.json) {
    Result object{{"machine", machine_}, {"results", results_}};
    if (!comparison.is_null()) object["compared"] = comparison;
    base::say(options_.out, fmt::format("{}\n", object.dump(-1, ' ', false, Result::error_handler_t::replace)));
  }
  if (failure_) return failure_;
  if (!stopped()) return std::nullopt;
  base::say(options_.notes, "stopped; the results until now are printed\n");
  return ErrorKind::interrupted;
}

void Session::erase_progress() {
  if (!line_drawn_) return;
  base::say(options_.notes, "\r\033[K");
  std::fflush(options_.notes);
  line_drawn_ = false;
}

Result machine_facts() {
  const auto topology = read_topology();
  utsname kernel{};
  ::uname(&kernel);
  return {{"cpu", topology.cpu_model},
          {"cores", topology.cores},
          {"numa_nodes", topology.numa_nodes},
          {"simd", topology.simd},
          {"memory_bytes", topology.memory_bytes},
          {"kernel", kernel.release}};
}

}  // namespace terrace::bench
