// Runs all checks, even after one has failed, so that a user sees every mistake at once.
//
//   UsageErrors errors;
//   errors.gather([&] { check_sizes(config); });
//   errors.gather([&] { check_paths(config); });
//   errors.throw_if_any();
//
// Owner:   one list of checks. Threads: one.
// Errors:  throw_if_any() rethrows a single error as it was; of several it makes one Error(ErrorKind::refused) with all their
//          texts, one per line. gather() lets errors that are not of usage pass.
#pragma once

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include <terrace/core/base/error.h>

namespace terrace::base {

class UsageErrors {
 public:
  template <class Check>
  void gather(Check&& check) {
    try {
      check();
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::refused) throw;
      if (std::ranges::find(texts_, e.what()) != texts_.end()) return;
      texts_.emplace_back(e.what());
      only_ = std::current_exception();
    }
  }
  [[nodiscard]] bool any() const { return !texts_.empty(); }
  void throw_if_any() const {
    if (texts_.size() == 1) std::rethrow_exception(only_);
    std::string all;
    for (const auto& text : texts_) all += (all.empty() ? "" : "\n") + text;
    if (any()) throw Error(all, ErrorKind::refused);
  }

 private:
  std::vector<std::string> texts_;
  std::exception_ptr only_;
};

}  // namespace terrace::base
