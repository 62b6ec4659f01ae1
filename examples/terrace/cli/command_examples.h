// The examples and flags that the help of each command shows.
//
// Owner:   constant data. Threads: any. Errors: none.
#pragma once

#include <string_view>
#include <vector>

namespace terrace::cli {

struct ShownFlag {
  std::string_view name, brief;
};

struct CommandExamples {
  std::string_view command;             // "train", "bench nvme"; empty: the program itself
  std::vector<std::string_view> lines;  // at most three, so that -h fits a screen
  std::vector<ShownFlag> own;           // flags, other than settings, that -h shows; empty: all of them
};

const CommandExamples& examples_of(std::string_view command);  // of an unknown command: empty

}  // namespace terrace::cli
