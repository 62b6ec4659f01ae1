// One benchmark of `terrace bench`: its name, its flags, and the measurement.
//
// Owner:   the program owns benches; a bench's flags point into it. Threads: one; a bench may start its own.
// Errors:  check() throws Error(Exit::usage) before anything is changed; run() throws errors that end the whole bench. The
//          failure of one test of several goes to Session::fail(), and the other tests still run.
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

// A setting of a bench. The program makes a command line of them.
struct Flag {
  // A flag, a number, a size ("8MiB", at least one page), a text, a path.
  using Target = std::variant<bool*, std::int64_t*, std::uint64_t*, std::string*, std::filesystem::path*>;
  std::string name;  // "queue-depth"; of the positional argument: what it is called in messages
  Target target;
  std::string help;
  std::int64_t least = 1, most = 1'000'000;  // of a number
  std::vector<std::string> choices = {};     // of a text; empty: any
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
