// Limits the work of a template, so that an endless loop, or a text that doubles again and again, ends with an error. Work is
// charged, not results: a search costs the bytes that it compares, a list its items. Memory counts as used until the template
// ends, although most of it is freed earlier.
//
// Owner: the Runtime of a rendering. Threads: one at a time. Errors: Fault.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <terrace/examples/lm/chat/jinja/fault.h>

namespace terrace::lm::jinja {

inline constexpr std::uint64_t kMostSteps = 5'000'000;                // about half a second
inline constexpr std::uint64_t kBytesOfAStep = 64;                    // read or written in one step
inline constexpr std::size_t kMostTextBytes = std::size_t{64} << 20;  // of one text; conversation lines have the same limit
inline constexpr std::size_t kMostBytes = std::size_t{256} << 20;     // of all texts, lists and other parts of values
inline constexpr int kMostNesting = 200;                              // of expressions, statements and values
inline constexpr int kMostDepth = 400;                                // of the evaluation: macro calls and statements
inline constexpr std::int64_t kMostOfRange = 100'000;                 // as in Jinja's sandbox
inline constexpr std::size_t kBytesOfAnObject = 128;                  // a list, a text or a function, without its contents
inline constexpr std::size_t kBytesOfAName = 160;  // a variable with its value, in a list that may be half empty

class Work {
 public:
  void take(std::uint64_t steps) {
    if (steps > steps_) too_much("it takes more than 5 million steps");
    steps_ -= steps;
  }
  // Charges bytes that are read, compared or skipped.
  void take_read(std::size_t bytes) { take(bytes / kBytesOfAStep); }
  // Charges memory; call it before allocating.
  void take_bytes(std::size_t bytes) {
    if (bytes > bytes_) too_much("its texts and lists take more than 256 MiB");
    bytes_ -= bytes;
  }
  void take_object() {
    take(1);
    take_bytes(kBytesOfAnObject);
  }
  // Charges a text; call it before making the text.
  void take_text(std::size_t bytes) {
    demand_text(bytes);
    take_read(bytes);
    take_object();
    take_bytes(bytes);
  }
  static void demand_text(std::size_t bytes) {
    if (bytes > kMostTextBytes) too_much("it makes a text of more than 64 MiB");
  }

 private:
  std::uint64_t steps_ = kMostSteps;
  std::size_t bytes_ = kMostBytes;
};

// A text that is being written. Its memory and work are charged as it grows.
class Draft {
 public:
  explicit Draft(Work& work) : work_(&work) {}

  // Call it before writing a text of `bytes` bytes.
  void reserve(std::size_t bytes) {
    Work::demand_text(bytes);
    work_->take_read(bytes);
    paid_ += bytes;
    extend(bytes);
  }
  void add(std::string_view part) {
    grow(part.size());
    text_ += part;
  }
  void add(char c) {
    grow(1);
    text_ += c;
  }
  [[nodiscard]] std::size_t size() const { return text_.size(); }
  std::string take() { return std::move(text_); }

 private:
  void grow(std::size_t bytes) {
    const auto paid = std::min(paid_, bytes);
    paid_ -= paid;
    unpaid_ += bytes - paid;
    if (unpaid_ >= kBytesOfAStep) {
      work_->take_read(unpaid_);
      unpaid_ %= kBytesOfAStep;
    }
    const auto size = text_.size() + bytes;
    Work::demand_text(size);
    if (size > text_.capacity()) extend(std::clamp(2 * text_.capacity(), size, std::max(size, kMostTextBytes)));
  }
  void extend(std::size_t bytes) {
    if (bytes <= text_.capacity()) return;
    work_->take_bytes(bytes - text_.capacity());
    text_.reserve(bytes);
    work_->take_bytes(text_.capacity() - bytes);  // reserve() may allocate more than requested
  }

  Work* work_;
  std::size_t paid_ = 0, unpaid_ = 0;  // bytes
  std::string text_;
};

}  // namespace terrace::lm::jinja
