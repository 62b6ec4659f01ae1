// Cuts a JSON array into the texts of its elements, piece by piece, without reading what they say.
//
// Owner:   the caller. Threads: one.
// Errors:  none: what is no JSON is found by who reads the elements.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace terrace::lm {

class JsonElements {
 public:
  // The pieces follow each other, the first behind the array's bracket. `take` gets each element that ends in the piece.
  using Take = std::function<void(std::string_view element)>;
  void read(std::string_view piece, const Take& take);
  [[nodiscard]] bool closed() const { return closed_; }
  [[nodiscard]] bool goes_on() const { return goes_on_; }                // something stands behind the array
  [[nodiscard]] std::size_t longest() const { return element_.size(); }  // of an element that has not ended

 private:
  void end(const Take& take);

  std::string element_;    // until now
  std::size_t depth_ = 0;  // of brackets within it
  bool in_text_ = false, escaped_ = false, closed_ = false, goes_on_ = false;
};

}  // namespace terrace::lm
