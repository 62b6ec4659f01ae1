// What all command lines of terrace have in common: -h and --help (help_text.h), which are not errors; errors that say where to
// look; and for an unknown flag, the nearest known one.
//
// Threads: any. Errors: Error(ErrorKind::refused).
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace terrace::cli {

// Throws an Error with `what`, and "see terrace COMMAND --help" as its second line. `command` may be empty.
[[noreturn]] void refuse(const std::string& what, const std::string& command);

// Parses the command line. An argument that no option accepts is an error. Returns the text of -h, --help or --version if one
// of them was given, else nothing. `command`: the words before the app's own, such as "bench". Subcommands must allow extras.
std::string parse_words(CLI::App& app, int argc, const char* const* argv, const std::string& command = "");

// Adds a flag that takes a real number, whose decimal point does not depend on the locale.
void add_number(CLI::App& command, const std::string& flag, double& number, const std::string& help);

// The subcommand that was given, or the app itself.
CLI::App& chosen(CLI::App& app);

}  // namespace terrace::cli
