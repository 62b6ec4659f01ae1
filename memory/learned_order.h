// The order in which a loop requests its chunks. One pass over the loop records it; the next passes are compared with it, so
// that the coming requests are known.
//
// A pass may deviate: requests may be missing, new, or a little earlier or later, as those of several threads are. The position
// follows what comes. A pass that was not as recorded replaces the recorded one at its end. So a change of order costs moves,
// and at most for one pass; it never changes a result.
//
// Several loops (training, evaluation) are told apart by name.
//
// Pure. Owner: LearnedPolicy. Threads: the owner's.
// Errors:  std::logic_error for the end of a pass that was not begun.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <terrace/memory/chunk.h>

namespace terrace::memory {

class LearnedOrder {
 public:
  struct Request {
    Tier tier{};
    std::vector<Use> uses;
  };
  using Program = std::vector<Request>;

  // A pass that was begun before and has not ended is forgotten.
  void begin_pass(const std::string& loop);
  // True if the loop's program is not what it was.
  bool end_pass();
  // The next request. Does nothing between passes.
  void requested(std::span<const Use> uses, Tier tier);

  [[nodiscard]] bool in_pass() const { return in_pass_; }
  // Of the loop begun last; empty: it is not known yet.
  [[nodiscard]] const Program& program() const { return known_; }
  // The next request of program(); its size: the pass is over.
  [[nodiscard]] std::uint64_t position() const { return position_; }
  // Offers the coming requests, the nearest first, beyond the end of the pass too, until `wants_more` answers false or each
  // has been offered.
  void offer_coming(const std::function<bool(const Request&)>& wants_more) const;

 private:
  void follow(const Request& request);
  bool comes_near(const Request& request);
  void jump(std::uint64_t to);

  std::string loop_;
  std::map<std::string, Program> others_;  // of the other loops
  Program known_, recorded_;
  bool in_pass_ = false;
  bool as_known_ = true;        // this pass so far
  bool last_was_found_ = true;  // the request before this one has a place in the program
  std::vector<bool> came_;      // by position: in this pass
  std::uint64_t position_ = 0;  // everything before it has come, or is given up
  std::uint64_t farthest_ = 0;  // behind the farthest request that has come
};

}  // namespace terrace::memory
