// What -h and --help print.
//
// Threads: any. Errors: none.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <terrace/examples/terrace/cli/command_text.h>

namespace terrace::cli {

// -h: the common flags, examples, and where to read more; one screen of 24 lines and 80 columns.
std::string brief_help(const CommandText& command);
// --help: everything, in lines of at most `columns`.
std::string full_help(const CommandText& command, std::size_t columns);
// The width of the terminal on standard output, limited to what can be read well; 80 without a terminal.
std::size_t help_columns();

// "terrace generate RUN [FLAGS]"
std::string usage_of(const CommandText& command);
// The first clauses of a text, as many as fit.
std::string first_clauses(std::string_view text, std::size_t columns);
// "-h, --help", as every command has it.
FlagText help_flag();

}  // namespace terrace::cli
