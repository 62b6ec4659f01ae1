#include <terrace/examples/terrace/config/input_files.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <terrace/core/base/refused.h>
#include <terrace/examples/terrace/data/data_sources.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;

struct NamedFile {
  std::string_view flag;
  fs::path file;
};

std::vector<NamedFile> files_read(const CommandLine& line, std::span<const std::string> config_files) {
  const auto& c = line.config;
  std::vector<NamedFile> all;
  for (const auto& file : data_files(c)) all.push_back({"--data", file});
  if (!c.data.eval_files.empty())
    for (const auto& file : data_files(of_evaluation(c))) all.push_back({"--eval-data", file});
  for (const auto& file : config_files) all.push_back({"--config", file});
  all.insert(all.end(), {{"--tokenizer", c.data.tokenizer},
                         {"--init-from", c.run.init_from},
                         {"--schedule", c.parallel.schedule},
                         {"--machine-profile", c.plan.machine_profile},
                         {"--cluster-profile", line.plan.cluster_profile}});
  // A terminal or a pipe may be input and output.
  std::error_code error;
  std::erase_if(all, [&](const NamedFile& named) { return !fs::is_regular_file(named.file, error); });
  return all;
}

std::vector<NamedFile> files_written(const CommandLine& line) {
  std::vector<NamedFile> all{{"--save", line.config.run.save},
                             {"--prometheus", line.config.run.prometheus},
                             {"--machine-profile", line.config.plan.machine_profile},
                             {"--trace", line.plan.trace},
                             {"--timeline", line.plan.timeline},
                             {"--write-schedule", line.plan.write_schedule}};
  std::erase_if(all, [](const NamedFile& named) { return named.file.empty(); });
  return all;
}

// Outputs that the user may let replace an input, which has been read by then. A machine profile is read first, and a file that
// is no profile is refused.
bool may_replace(std::string_view written, std::string_view read) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kPairs{
      {{"--save", "--init-from"}, {"--write-schedule", "--schedule"}}};
  return written == "--machine-profile" || std::ranges::find(kPairs, std::pair(written, read)) != kPairs.end();
}

bool lies_in(const fs::path& file, const fs::path& folder) {
  std::error_code error;
  const auto relative = fs::weakly_canonical(file, error).lexically_relative(fs::weakly_canonical(folder, error));
  return !error && !relative.empty() && *relative.begin() != "..";
}

}  // namespace

void demand_inputs_stay(const CommandLine& line, std::span<const std::string> config_files) {
  const auto read = files_read(line, config_files);
  std::error_code error;
  for (const auto& out : files_written(line))
    for (const auto& in : read) {
      if (fs::equivalent(out.file, in.file, error) && !may_replace(out.flag, in.flag))
        throw base::Refused(fmt::format("{0} {1} is a file of {2}, which it would replace\n  give {0} another file", out.flag,
                                        out.file.string(), in.flag));
      if (const auto beside = out.file.string() + ".tmp"; fs::equivalent(beside, in.file, error))
        throw base::Refused(
            fmt::format("{0} {1}: it is written as {2}, which is a file of {3}\n  give {0} another file, or that one "
                        "another name",
                        out.flag, out.file.string(), beside, in.flag));
    }
  const auto& c = line.config;
  const auto run = c.run.resume.directory(c.run.out_dir);
  for (const auto& in : read)
    if (in.file.extension() == ".tmp" && lies_in(in.file, run))
      throw base::Refused(
          fmt::format("{} {} lies in the run directory {}, where a run removes files of such names\n  move it, or give "
                      "it another name",
                      in.flag, in.file.string(), run.string()));
}

}  // namespace terrace::cli
