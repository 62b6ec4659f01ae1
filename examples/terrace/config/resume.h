// What a run continues (--resume).
//
// Threads: a value. Errors: none.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace terrace::cli {

struct Resume {
  // never: the run begins. automatic: the run in --out-dir, if there is one. run: the one in the directory `run`.
  enum class From : std::uint8_t { never, automatic, run } from = From::never;
  std::string run = {};

  [[nodiscard]] bool names_run() const { return from == From::run; }
  [[nodiscard]] std::filesystem::path directory(const std::filesystem::path& out_dir) const {
    return names_run() ? std::filesystem::path(run) : out_dir;
  }
};

inline Resume parse_resume(const std::string& text) {
  if (text == "never") return {};
  if (text == "auto") return {.from = Resume::From::automatic};
  return {.from = Resume::From::run, .run = text};
}
inline std::string to_text(const Resume& resume) {
  return resume.names_run() ? resume.run : resume.from == Resume::From::automatic ? "auto" : "never";
}

}  // namespace terrace::cli
