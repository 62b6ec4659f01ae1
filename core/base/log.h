// Where the library's warnings go: to standard error, or to a function that a program gives in the options of a device, a
// store, an I/O engine or a chunk manager.
//
// Owner:   a value; its copies go to the same place, which lives until the last of them ends.
// Threads: any. The function may be called from any thread, also from several at once.
// Errors:  none: what the function throws is dropped.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

namespace terrace {

class Log {
 public:
  enum class Level : std::uint8_t { note, warning };  // a note tells the progress of long work
  using Take = std::function<void(Level level, std::string_view text)>;

  Log();  // writes to standard error, a warning as "warning: …"
  explicit Log(Take take);
  void note(std::string_view text) const noexcept;
  void warn(std::string_view text) const noexcept;
  // Facts about the process or the machine, which many objects would find: each place is told once.
  enum class Once : std::uint8_t { memlock, file_locks };
  void warn_once(Once fact, std::string_view text) const noexcept;

 private:
  struct Place;
  static const std::shared_ptr<Place>& standard_error();

  std::shared_ptr<Place> place_;
};

}  // namespace terrace
