// What a fuzzer, and the test that goes through its old findings, asks of the readers of files that others wrote: whatever the
// bytes are, a reader takes them, or it refuses them with an Error that names the file and has the exit code 2 (what terrace
// does not have) or 5 (damaged). Any other exception is a finding. What is taken must be what it says: it is read to its end,
// and written again it is the same.
//
// Threads: one at a time; the files are in a folder of the process.
#pragma once

#include <array>
#include <ostream>
#include <string_view>

namespace terrace::test {

struct ReaderCheck {
  std::string_view name;                   // and of the folder of its corpus
  bool (*accepts)(std::string_view file);  // std::logic_error: a finding
};

inline std::ostream& operator<<(std::ostream& out, const ReaderCheck& check) { return out << check.name; }

extern const std::array<ReaderCheck, 10> kReaderChecks;

}  // namespace terrace::test
