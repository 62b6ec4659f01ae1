// The position of each rank of a communicator, for the report of a hang.
//
// Owner:   values; a backend keeps one Position per rank where all of its ranks can read it.
// Threads: values.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include <terrace/parallel/comm/call.h>

namespace terrace::comm {

struct Position {
  std::uint64_t ended = 0;    // calls that have ended
  std::uint64_t pending = 0;  // calls that run now, on several streams
  std::uint64_t number = 0;   // of the oldest running call, counted from 1 in the order of issue
  std::string call;           // that call as text
  bool left = false;          // this rank destroyed its communicator
};

// The calls of one rank. The owner guards it.
class PositionLog {
 public:
  void begin(std::uint64_t number, const Call& call) { pending_.emplace(number, to_string(call)); }
  void end(std::uint64_t number) {
    pending_.erase(number);
    ++position_.ended;
  }
  void leave() { position_.left = true; }
  [[nodiscard]] bool left() const { return position_.left; }
  [[nodiscard]] Position now() const;

 private:
  Position position_;
  std::map<std::uint64_t, std::string> pending_;
};

// "16 calls ended, in call 17, all-reduce of 64 bytes (fp32 sum)"
std::string to_string(const Position& position);
// One line per rank.
std::string report(std::span<const Position> positions);

}  // namespace terrace::comm
