// Chooses the source of each sequence of a run when several sources have weights.
//
// After any number n of sequences, each source has had its share of them with an error of less than one. So a source of share w
// gets its j-th sequence in a window of places: not before w · n exceeds j − 1, and before w · n − j reaches 1. Always taking
// the sequence whose window ends first meets all windows (Baruah, Cohen, Plaxton, Varvel: "Proportionate progress", 1996). If
// windows end together, (seed, i) decides. After a period of as many sequences as the sum of the weights, all shares are exact.
// So the source of any i can be computed from the beginning of its period, and a commit need not save any state.
//
// Owner:   the caller. Threads: one at a time. Earlier calls change only the speed of an answer, not the answer.
// Errors:  Error(ErrorKind::refused) for weights that are not positive numbers, or that would need a longer period to be exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::lm {

// Decimal numbers as integers in exactly the same proportions: "0.7", "0.3" become 7, 3.
std::vector<std::uint64_t> whole_weights(const std::vector<std::string>& weights);
// True if a text is meant as a number: "0.7", but also "-1" and "nan", which are invalid as weights.
bool is_number(std::string_view text);

class Mixture {
 public:
  static constexpr std::uint64_t kLongestPeriod = 1'000'000;  // takes a few milliseconds to step through

  Mixture(std::vector<std::uint64_t> weights, std::uint64_t seed);

  struct Place {
    std::size_t source = 0;
    std::uint64_t sequence = 0;  // number within that source, counted over all its epochs
    friend bool operator==(const Place&, const Place&) = default;
  };
  [[nodiscard]] Place at(std::uint64_t i);
  // How many of the first n sequences each source has.
  [[nodiscard]] std::vector<std::uint64_t> taken(std::uint64_t n);

  [[nodiscard]] std::size_t sources() const { return weights_.size(); }
  [[nodiscard]] double share(std::size_t source) const {
    return static_cast<double>(weights_[source]) / static_cast<double>(period_);
  }

 private:
  void go_to(std::uint64_t i);
  [[nodiscard]] std::size_t next() const;

  std::vector<std::uint64_t> weights_;
  std::uint64_t seed_, period_ = 0;
  std::uint64_t i_ = 0;               // the next sequence to place
  std::vector<std::uint64_t> taken_;  // sequences of each source so far in i_'s period
};

}  // namespace terrace::lm
