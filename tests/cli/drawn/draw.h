// Draws numbers from a seed and a case number, with the same results on every machine.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

namespace terrace::test {

class Draw {
 public:
  Draw(std::uint64_t seed, std::uint64_t number) : random_(seed * 1'000'003 + number) {}
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  std::uint64_t from(std::uint64_t low, std::uint64_t high) { return low + below(high - low + 1); }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  double share() { return static_cast<double>(below(1'000'001)) / 1e6; }  // a share from 0 to 1
  template <class T>
  T of(std::initializer_list<T> all) {
    return all.begin()[below(all.size())];
  }
  template <class T>
  T of(const std::vector<T>& all) {
    return all.at(below(all.size()));
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace terrace::test
