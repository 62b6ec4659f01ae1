// What every command line of terrace has in common: refusals that say where to look, help that is an answer and no error, and
// unknown flags that come with the nearest known one.
//
// Threads: any. Errors: Error(Exit::usage).
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace terrace::cli {

// "WHAT", and a second line "see terrace COMMAND --help". `command` may be empty.
[[noreturn]] void refuse(const std::string& what, const std::string& command);

// Parses, and refuses what no option wants. Returns the text of --help or --version where that was asked for, else nothing.
// `command`: the words before the app's own, as in "bench"; empty: none. Subcommands must allow extras.
std::string parse_words(CLI::App& app, int argc, const char* const* argv, const std::string& command = "");

// The subcommand that was given; the app itself when there was none.
CLI::App& chosen(CLI::App& app);

}  // namespace terrace::cli
