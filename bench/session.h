// The output of a benchmark: results as they come (a table, or one JSON object at the end), one live line on a terminal, and
// errors.
//
// Owner:   the program. Threads: one; stopped() from any.
// Errors:  those of the constructor; fail() remembers the kind of the first failure.
#pragma once

#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include <terrace/core/base/error.h>

namespace terrace::bench {

// One line of results: the keys in display order; a unit is the last part of a key. Arrays and objects, and the names that
// other programs have for the test, are only in the JSON, not in the table.
using Result = nlohmann::ordered_json;

class Session {
 public:
  struct Options {
    std::int64_t runs = 5;          // per figure
    bool json = false;              // print one object on standard output, and nothing else
    bool terminal = false;          // standard error is a terminal: show the live line
    std::function<bool()> stopped;  // returns true after a signal; empty: never stopped
    // Converts a text of the library for display, with the program's flags for its settings; empty: the text is shown
    // unchanged.
    std::function<std::string(std::string_view)> shown = {};
    std::filesystem::path compare = {};  // an earlier output with --json, to compare with at the end; empty: none
    std::FILE* out = stdout;
    std::FILE* notes = stderr;
  };
  explicit Session(Options options);  // throws Error(ErrorKind::refused) if `compare` cannot be read
  ~Session();                         // removes the live line

  [[nodiscard]] std::int64_t runs() const { return options_.runs; }
  [[nodiscard]] bool stopped() const { return options_.stopped && options_.stopped(); }
  void machine(const std::string& key, const Result& value) { machine_[key] = value; }  // facts about the machine
  void result(Result result);
  void begin(std::string_view bench) { bench_ = bench; }  // of several in one run; each result then has its bench's name
  void note(std::string_view text);                       // only for people: left out with --json
  void warn(std::string_view text);                       // "warning: …"
  void progress(std::string_view text);                   // replaces the live line; shown at most ten times a second
  void fail(const std::exception& error);                 // this test has failed; the others continue
  // Prints the object, and returns the kind of the first failure, or interrupted, or nothing if all is done.
  std::optional<ErrorKind> finish();

 private:
  void erase_progress();
  void print_row(const Result& row);  // with its header, if that differs from the header of the previous row
  Result compared();                  // prints the comparison; returns it for the JSON
  [[nodiscard]] std::string shown(std::string_view text) const {
    return options_.shown ? options_.shown(text) : std::string(text);
  }

  Options options_;
  Result machine_, results_ = Result::array();
  Result old_;                        // to compare with; null: nothing
  std::string bench_;                 // empty: there is only one bench
  std::string header_;                // of the current table
  std::optional<ErrorKind> failure_;  // the first
  bool line_drawn_ = false;
  std::int64_t drawn_ns_ = 0;
};

Result machine_facts();  // from read_topology() and the kernel

}  // namespace terrace::bench
