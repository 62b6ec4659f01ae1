// The checks that a fuzzer, and the test of its earlier findings, make with readers of foreign files. For any bytes, a reader
// either accepts them or throws an Error that names the file, with exit code 2 (terrace does not support it) or 5 (damaged).
// Any other exception is a finding. An accepted file must be valid: it is read to its end, and if it is written again, it is
// the same.
//
// Threads: one at a time; the files are in a folder of the process.
#pragma once

#include <array>
#include <ostream>
#include <string_view>

namespace terrace::test {

struct ReaderCheck {
  std::string_view name;                   // also the name of its corpus folder
  bool (*accepts)(std::string_view file);  // a std::logic_error is a finding
};

inline std::ostream& operator<<(std::ostream& out, const ReaderCheck& check) { return out << check.name; }

extern const std::array<ReaderCheck, 10> kReaderChecks;

}  // namespace terrace::test
