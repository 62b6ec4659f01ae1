// Where the rows of a mixture's experts lie on a rank, by what routers reported of a micro-batch.
//
// Own rows are those of the rank's tokens, expert by expert (core/routing.h); shared experts compute on these. Computed rows
// are those on which the rank's other experts compute. Without expert ranks they are the own ones. With them they came from all
// expert ranks: rank by rank, and of each rank expert by expert. Inputs and inner activations of shared experts then lie behind
// the most that can come.
//
// A report (Layer::report_size()) has the router's numbers (RoutingReport). With expert ranks these follow: the rows of each
// expert on each rank, by rank, and how many elements of rows go to, and come from, each rank.
//
// Threads: values; pure.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/core/routing.h>
#include <terrace/core/tensor.h>
#include <terrace/parallel/comm/call.h>
#include <terrace/parallel/expert_parallel.h>
#include <terrace/parallel/phase.h>

namespace terrace::layers {

class ExpertRows {
 public:
  // `width`: elements of a row as it travels.
  ExpertRows(const Routing& routing, const ExpertParallel& ranks, std::int64_t tokens, std::int64_t width)
      : routing_(routing), ranks_(ranks), tokens_(tokens), width_(width) {}

  // The experts of this rank: some of those that are chosen, then the shared ones, which all ranks have.
  [[nodiscard]] std::uint32_t chosen_here() const { return static_cast<std::uint32_t>(routing_.experts) / ranks_.ranks; }
  [[nodiscard]] std::uint32_t here() const { return chosen_here() + static_cast<std::uint32_t>(routing_.shared); }
  [[nodiscard]] bool is_shared(std::uint32_t expert) const { return expert >= chosen_here(); }
  [[nodiscard]] bool are_dealt() const { return ranks_.ranks > 1; }

  // The most that can be: of one expert at once, of all own rows, and of all that are computed here.
  [[nodiscard]] std::int64_t most_of(std::uint32_t expert) const;
  [[nodiscard]] std::int64_t most_own() const { return most_to(routing_.experts) + routing_.shared * tokens_; }
  [[nodiscard]] std::int64_t most_computed() const;
  // The rows that an expert of this rank has, if all are chosen equally often; and those that one rank has for another.
  [[nodiscard]] double usual_of(std::uint32_t expert) const;
  [[nodiscard]] std::int64_t usual_between() const;

  // By a report. own(): of an expert, among the rank's own rows. computed(): of an expert of this rank, a block from each rank.
  [[nodiscard]] Block own(const double* report, std::uint32_t expert) const;
  [[nodiscard]] std::vector<Block> computed(const double* report, std::uint32_t expert) const;

  // Positions in a report.
  [[nodiscard]] std::int64_t report_size() const;
  [[nodiscard]] std::int64_t counts() const { return RoutingReport{routing_}.size(); }
  [[nodiscard]] PhaseExchange::Told there() const;  // from the ranks of the tokens to those of the experts
  [[nodiscard]] PhaseExchange::Told back() const { return {.sent = there().received, .received = there().sent}; }
  // Writes what there() names, from counts().
  void tell(double* report) const;

 private:
  [[nodiscard]] std::int64_t most_to(std::int64_t experts) const;  // of one rank's tokens, rows for so many experts
  // Of the experts of `rank`, the rows of the tokens of `from`.
  [[nodiscard]] std::int64_t rows_between(const double* report, std::uint32_t from, std::uint32_t rank) const;
  [[nodiscard]] std::int64_t count(const double* report, std::uint32_t from, std::uint32_t expert) const;

  Routing routing_;
  ExpertParallel ranks_;
  std::int64_t tokens_, width_;
};

}  // namespace terrace::layers
