#include <terrace/tests/cli/cli_test.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <stdexcept>

namespace terrace::test {

using nlohmann::json;

namespace {
json without_checksum(json object) {
  object.erase("xxh3");
  return object;
}
}  // namespace

Cli::Cli() {
  std::filesystem::create_directory(at("disk"));
  scratch_.write("corpus.txt", EnglishText(kCorpusSeed).of(kCorpusBytes));
  // Costs of the plan are assumed, because timing every layer first would take most of a tiny run's time.
  scratch_.write("tiny.toml", R"(data = ["corpus.txt"]
layers = 2
hidden = 64
heads = 4
seq-len = 64
batch-size = 2
steps = 4
out-dir = "run"
lr-schedule = "constant"
lr = 3e-4
min-lr = 3e-5
lora-targets = "q,v"
dtype = "fp32"
tiles = "off"
device = "cpu"
warmup = 6
threads = 2
assumed-costs = true
)");
}

Launch Cli::launch(Words words) const {
  return {.program = TERRACE_PROGRAM,
          .arguments = std::move(words),
          .folder = scratch_.path(),
          .environment = {{"XDG_CACHE_HOME", (scratch_ / "cache").string()}, {"TERRACE_IO_ENGINE", ""}, {"NO_COLOR", ""}},
          .in_child = {}};
}

Words Cli::tiny(const std::string& command, const Words& more) const {
  Words words{command, "--config", "tiny.toml"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

json Cli::json_in(const std::string& name) const { return without_checksum(json::parse(scratch_.read(name))); }

std::vector<json> Cli::metrics(const std::string& run) const {
  std::vector<json> all;
  std::ifstream in(at(run) / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) all.push_back(without_checksum(json::parse(line)));
  return all;
}

std::vector<Step> Cli::steps(const std::string& run) const {
  std::vector<Step> all;
  for (const auto& m : metrics(run)) {
    all.push_back({m.at("step"), m.at("loss"), m.at("grad_norm"), m.at("lr"), std::nullopt});
    if (m.contains("eval_loss")) all.back().held_out = m.at("eval_loss").get<double>();
  }
  return all;
}

std::string Cli::text_of(const std::string& run, const std::string& prompt, int tokens) const {
  const Words sampling{"--max-tokens", std::to_string(tokens), "--temperature", "0"};
  return succeeded(terrace(Words{"generate", run, "--prompt", prompt} + sampling)).out;
}

Words flags(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::string>(in), {}};
}

Outcome succeeded(Outcome outcome) {
  if (outcome.exit != 0) throw std::runtime_error("the command failed: " + outcome.described);
  return outcome;
}

void expect_refusal(const Outcome& outcome, int exit, const std::vector<std::string>& said) {
  SCOPED_TRACE(outcome.described);
  EXPECT_EQ(exit, outcome.exit);
  EXPECT_NE(std::string::npos, ("\n" + outcome.err).find("\nerror: "));
  EXPECT_NE(std::string::npos, outcome.err.find("\n  ")) << "it does not say how to go on";
  EXPECT_EQ(std::string::npos, outcome.err.find("json.exception")) << "a library's words";
  for (const auto& text : said) EXPECT_THAT(outcome.err, HasSubstr(text));
}

void remove_copies(const std::filesystem::path& file) {
  for (const auto* const copy : {"", ".copy"}) EXPECT_TRUE(std::filesystem::remove(file.string() + copy)) << file << copy;
}

std::string weights_of(const Outcome& outcome) {
  EXPECT_EQ(0, outcome.exit) << outcome.described;
  const auto line = outcome.last_line();
  std::smatch found;
  if (std::regex_match(line, found, std::regex("weights xxh64 ([0-9a-f]{16})"))) return found[1];
  const auto object = json::parse(line, nullptr, false);
  if (object.is_object() && object.contains("weights_xxh64")) return object.at("weights_xxh64");
  ADD_FAILURE() << "no hash of the weights:\n" << outcome.described;
  return {};
}

}  // namespace terrace::test
