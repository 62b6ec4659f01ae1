// One benchmark of `terrace bench`: its name, its flags, and the measurement.
//
// Owner:   the program owns the benches; the flags of a bench point into it. Threads: one; a bench may start more.
// Errors:  check() throws Error(ErrorKind::refused) before anything is changed; run() throws errors that end the whole bench.
//          If one test of several fails, the error goes to Session::fail(), and the other tests still run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <terrace/bench/session.h>

namespace terrace::bench {

// A setting of a bench. The program makes command-line flags of them.
struct Flag {
  // Where the value goes: a switch, a number, a size ("8MiB", at least one page), a text, a path, or one path or more.
  using Target = std::variant<bool*, std::int64_t*, std::uint64_t*, std::string*, std::filesystem::path*,
                              std::vector<std::filesystem::path>*>;
  std::string name;  // "queue-depth"; for the positional argument, its name in messages
  Target target;
  std::string help;
  std::int64_t least = 1, most = 1'000'000;  // limits of a number
  std::vector<std::string> choices = {};     // allowed texts; empty: any
  bool positional = false;
};

class Bench {
 public:
  virtual ~Bench() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual std::string_view help() const = 0;
  virtual std::vector<Flag> flags() { return {}; }
  virtual void check() {}  // checks across flags
  virtual void run(Session& session) = 0;
};

}  // namespace terrace::bench
