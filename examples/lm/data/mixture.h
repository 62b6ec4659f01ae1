// Which source each sequence of a run comes from, where several sources have weights.
//
// After any number of sequences each source has had its share of them within less than one. A source of share w must have had
// its j-th sequence before w · n − j reaches 1, and not before w · n exceeds j − 1: a window of places for each. Taking the
// sequence whose window ends first always meets all windows (Baruah, Cohen, Plaxton, Varvel: "Proportionate progress", 1996).
// Where windows end together, (seed, i) decides. All shares come out even after a period of as many sequences as the weights
// add up to, so that any i is found from the beginning of its period, and nothing is to be kept in a commit.
//
// Owner:   the caller. Threads: one at a time; the answers do not depend on what was asked before, but their speed does.
// Errors:  Error(Exit::usage) for weights that are no positive numbers, or that only a longer period could give exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::lm {

// Decimal numbers as whole ones in the same proportions, exactly: "0.7", "0.3" as 7, 3.
std::vector<std::uint64_t> whole_weights(const std::vector<std::string>& weights);
// Whether a text is meant as a number: "0.7", but also "-1" and "nan", which are no weights.
bool is_number(std::string_view text);

class Mixture {
 public:
  static constexpr std::uint64_t kLongestPeriod = 1'000'000;  // takes a few milliseconds to run through

  Mixture(std::vector<std::uint64_t> weights, std::uint64_t seed);

  struct Place {
    std::size_t source = 0;
    std::uint64_t sequence = 0;  // of that source, counted over all its epochs
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
  std::uint64_t i_ = 0;               // the next sequence
  std::vector<std::uint64_t> taken_;  // of each source, in i_'s period
};

}  // namespace terrace::lm
