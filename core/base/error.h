// Errors as the user sees them: what failed, on what, why, and how to fix it. A program can also read the kind, and the
// system's error code, the path and the object as far as they are known.
//
// Owner:   values; thrown at call boundaries, carried by events and completions between threads.
// Threads: any.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace terrace {

enum class ErrorKind : std::uint8_t {
  failed,        // something did not work while it ran: a disk, a file, memory, another rank
  refused,       // a setting, an argument or a file of settings is not accepted
  does_not_fit,  // the plan does not fit into the budgets, or the store onto its disk
  missing,       // hardware, a library or the folder of a disk is absent
  corrupt,       // stored bytes are not as they were written
  interrupted,   // stopped on request; the work can be continued
};

// What a program can read from an error besides its text. A field is empty if the library does not know it.
struct ErrorFacts {
  std::error_code code = {};  // of the system, such as std::errc::no_space_on_device
  std::string path = {};      // the file or folder
  std::string object = {};    // what was read, written or meant, as the text names it: "chunk 118"
};

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what, ErrorKind kind = ErrorKind::failed) : std::runtime_error(what), kind_(kind) {}
  Error(const std::string& what, ErrorKind kind, ErrorFacts facts)
      : std::runtime_error(what), kind_(kind), facts_(std::make_shared<const ErrorFacts>(std::move(facts))) {}
  // The same error with another text. Kind and facts are those of the cause; a path is added if the cause has none.
  Error(const std::string& what, const Error& cause, const std::string& path = {});

  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }
  [[nodiscard]] std::error_code code() const noexcept { return facts().code; }
  [[nodiscard]] const std::string& path() const noexcept { return facts().path; }
  [[nodiscard]] const std::string& object() const noexcept { return facts().object; }
  [[nodiscard]] const ErrorFacts& facts() const noexcept;
  // The facts, with this path if they have none: for an error of another kind that this one causes.
  [[nodiscard]] ErrorFacts facts_at(const std::string& path) const;

 private:
  ErrorKind kind_;
  std::shared_ptr<const ErrorFacts> facts_;  // shared, so that copying an error throws nothing; null: no facts
};

// "No space left on device (errno 28)"
std::string describe_errno(int error_number);
std::error_code code_of_errno(int error_number);
// An error with this code and path. Its text is `what` and a colon, which are absent if `what` is empty; describe_errno(); and
// on a second line `mend`, which says what to do, if it is not empty.
Error errno_error(int error_number, const std::string& path, std::string_view what = {}, std::string_view mend = {});

// The text of any exception for a message. For one of std::filesystem it has the path and the reason, as errors of terrace do.
std::string describe(const std::exception& error);

}  // namespace terrace
