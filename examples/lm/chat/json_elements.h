// Cuts a JSON array into the texts of its elements, piece by piece, without parsing the elements.
//
// Owner:   the caller. Threads: one.
// Errors:  none: invalid JSON is detected by the parser of the elements.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace terrace::lm {

class JsonElements {
 public:
  // The pieces follow one another; the first one starts after the array's bracket. `take` receives each element that ends in
  // the piece.
  using Take = std::function<void(std::string_view element)>;
  void read(std::string_view piece, const Take& take);
  [[nodiscard]] bool closed() const { return closed_; }
  [[nodiscard]] bool goes_on() const { return goes_on_; }                // something follows the array
  [[nodiscard]] std::size_t longest() const { return element_.size(); }  // bytes so far of an unfinished element

 private:
  void end(const Take& take);

  std::string element_;    // the current element so far
  std::size_t depth_ = 0;  // of open brackets in it
  bool in_text_ = false, escaped_ = false, closed_ = false, goes_on_ = false;
};

}  // namespace terrace::lm
