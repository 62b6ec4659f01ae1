// The mesh: named axes over one order of ranks. A rank's coordinates are the digits of its number, the last axis varying
// fastest, so that the ranks of the last axis are neighbours. The axis that communicates most is the last one.
//
// Owner:   values; communicators of axes belong to the caller.
// Threads: any; split() is collective.
// Errors:  Error(Exit::usage) for names, degrees and ranks that do not exist.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/parallel/comm/communicator.h>

namespace terrace {

struct Axis {
  std::string name;
  int degree = 1;
  friend bool operator==(const Axis&, const Axis&) = default;
};

class Mesh {
 public:
  explicit Mesh(std::vector<Axis> axes);
  // Pipelines cross machines first, tensor parallelism stays within one: pp, dp, ep, cp, tp.
  static Mesh of(int dp, int pp = 1, int tp = 1, int cp = 1, int ep = 1);

  [[nodiscard]] const std::vector<Axis>& axes() const { return axes_; }
  [[nodiscard]] int size() const;
  [[nodiscard]] int degree(std::string_view axis) const;
  [[nodiscard]] int coordinate(int rank, std::string_view axis) const;
  [[nodiscard]] std::vector<int> coordinates(int rank) const;  // in the order of axes()
  [[nodiscard]] int rank_of(std::span<const int> coordinates) const;
  // The ranks that differ from `rank` on these axes only, ascending. Several axes make one group: {"dp", "ep"}.
  [[nodiscard]] std::vector<int> group(int rank, std::span<const std::string> names) const;
  [[nodiscard]] std::vector<int> group(int rank, const std::string& axis) const { return group(rank, std::span(&axis, 1)); }
  // The communicator of that group, in the same order; its name is the axes' names joined by '+'.
  [[nodiscard]] std::unique_ptr<Communicator> split(Communicator& world, std::span<const std::string> names) const;
  [[nodiscard]] std::unique_ptr<Communicator> split(Communicator& world, const std::string& axis) const {
    return split(world, std::span(&axis, 1));
  }

 private:
  [[nodiscard]] std::size_t index_of(std::string_view axis) const;
  void demand_rank(int rank) const;

  std::vector<Axis> axes_;
};
std::string to_string(const Mesh& mesh);  // "pp 2 × dp 4 × tp 2"

}  // namespace terrace
