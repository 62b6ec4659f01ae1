#include <terrace/examples/terrace/base/output_file.h>

#include <unistd.h>

#include <cerrno>

#include <fmt/format.h>

#include <terrace/core/base/refused.h>

namespace terrace::cli {
namespace {

[[noreturn]] void refuse_output(const std::filesystem::path& out, const std::string& why, const char* mend) {
  throw base::Refused(fmt::format("--out {}: {}\n  {}", out.string(), why, mend));
}

}  // namespace

void demand_output(const std::filesystem::path& out, std::span<const std::string> read,
                   std::span<const std::filesystem::path> unfinished) {
  std::error_code error;
  for (const auto& file : read) {
    if (std::filesystem::equivalent(out, file, error))
      refuse_output(out, fmt::format("the command reads {}, which is the same file", file), "give --out another name");
    for (const auto& beside : unfinished)
      if (std::filesystem::equivalent(beside, file, error))
        refuse_output(out, fmt::format("the command reads {}, and writes {} until it is done", file, beside.string()),
                      "give --out another name, or that file one");
  }
  if (std::filesystem::is_directory(out, error)) refuse_output(out, "it is a folder", "give --out the name of a file");
  if (std::filesystem::exists(out, error) && !std::filesystem::is_regular_file(out, error)) return;  // such as /dev/stdout
  const auto parent = std::filesystem::absolute(out).parent_path();
  if (!std::filesystem::is_directory(parent, error))
    refuse_output(out, fmt::format("the folder {} does not exist", parent.string()),
                  "create the folder first, or give --out a file in another one");
  if (::access(parent.c_str(), W_OK | X_OK) != 0)
    refuse_output(out, fmt::format("no file can be created in {}: {}", parent.string(), describe_errno(errno)),
                  "change the permissions there, or give --out a file in another folder");
}

void demand_regular(const std::filesystem::path& out) {
  std::error_code error;
  if (std::filesystem::exists(out, error) && !std::filesystem::is_regular_file(out, error))
    refuse_output(out, "it is not a regular file", "give --out the name of a file");
}

}  // namespace terrace::cli
