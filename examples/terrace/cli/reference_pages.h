// Pages of docs/reference/ that the program writes from its own tables, in Markdown. A test compares them with what is
// committed.
//
// Threads: any. Errors: none.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <terrace/examples/terrace/cli/command_text.h>

namespace terrace::cli {

struct ReferencePage {
  std::string_view name;  // "flags": docs/reference/flags.md, as `terrace man flags` writes it
  std::string (*write)(const CommandText& program);
};

std::span<const ReferencePage> reference_pages();

}  // namespace terrace::cli
