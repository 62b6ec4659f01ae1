// The output of a benchmark: results as they come (a table, or one JSON object at the end), one live line on a terminal, and
// errors.
//
// Owner:   the program. Threads: one; stopped() from any.
// Errors:  none; fail() remembers the exit code of the program.
#pragma once

#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include <terrace/core/error.h>

namespace terrace::bench {

// One line of results: the keys in the order in which they are shown, units last in their names.
using Result = nlohmann::ordered_json;

class Session {
 public:
  struct Options {
    std::int64_t runs = 5;          // of each figure
    bool json = false;              // nothing but one object on standard output
    bool terminal = false;          // of standard error: the live line
    std::function<bool()> stopped;  // asked for by a signal; empty: never
    // How a text of the library is shown, with a program's flags for its settings; empty: as it is.
    std::function<std::string(std::string_view)> shown = {};
    std::FILE* out = stdout;
    std::FILE* notes = stderr;
  };
  explicit Session(Options options);
  ~Session();  // leaves no live line behind

  [[nodiscard]] std::int64_t runs() const { return options_.runs; }
  [[nodiscard]] bool stopped() const { return options_.stopped && options_.stopped(); }
  void machine(const std::string& key, const Result& value) { machine_[key] = value; }  // what the results hold for
  void result(Result result);
  void begin(std::string_view bench) { bench_ = bench; }  // several in one run: each result says which it is of
  void note(std::string_view text);                       // for people: left out with --json
  void warn(std::string_view text);                       // "warning: …"
  void progress(std::string_view text);                   // replaces the live line; shown at most ten times a second
  void fail(const std::exception& error);                 // this test is lost, others go on
  // Prints the object, and gives the program's exit code: of the first failure, or interrupted, or ok.
  Exit finish();

 private:
  void erase_progress();
  [[nodiscard]] std::string shown(std::string_view text) const {
    return options_.shown ? options_.shown(text) : std::string(text);
  }

  Options options_;
  Result machine_, results_ = Result::array();
  std::string bench_;   // empty: there is only one
  std::string header_;  // of the table at the moment
  Exit exit_ = Exit::ok;
  bool line_drawn_ = false;
  std::int64_t drawn_ns_ = 0;
};

Result machine_facts();  // of read_topology() and the kernel

}  // namespace terrace::bench
