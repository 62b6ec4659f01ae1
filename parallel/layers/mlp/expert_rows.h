// Where the rows of a mixture's experts are on a rank, computed from the routers' report on a micro-batch.
//
// Own rows are those of the rank's tokens, expert by expert (core/math/routing.h); shared experts compute on them. Computed
// rows are those on which the rank's other experts compute. Without expert ranks, they are the own rows. With expert ranks,
// they come from all these ranks: ordered by rank, and for each rank by expert. Inputs and inner activations of shared experts
// then follow after the space for the most rows that can come.
//
// A report (LayerFacts::report_size) has the router's numbers (RoutingReport). With expert ranks, these numbers follow: the
// rows of each expert on each rank, by rank, and how many elements of rows go to, and come from, each rank.
//
// Threads: values; pure.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/core/math/routing.h>
#include <terrace/core/math/tensor.h>
#include <terrace/parallel/comm/call.h>
#include <terrace/parallel/mesh/expert_parallel.h>
#include <terrace/parallel/model/phase.h>

namespace terrace::layers {

class ExpertRows {
 public:
  // `width`: elements of a row that is sent.
  ExpertRows(const Routing& routing, const ExpertParallel& ranks, std::int64_t tokens, std::int64_t width)
      : routing_(routing), ranks_(ranks), tokens_(tokens), width_(width) {}

  // The experts of this rank: its part of those that a router chooses from, then the shared experts, which all ranks have.
  [[nodiscard]] std::uint32_t chosen_here() const { return static_cast<std::uint32_t>(routing_.experts) / ranks_.ranks; }
  [[nodiscard]] std::uint32_t here() const { return chosen_here() + static_cast<std::uint32_t>(routing_.shared); }
  [[nodiscard]] bool is_shared(std::uint32_t expert) const { return expert >= chosen_here(); }
  [[nodiscard]] bool are_dealt() const { return ranks_.ranks > 1; }

  // Upper bounds: of the rows of one expert, of all own rows, and of all rows computed here.
  [[nodiscard]] std::int64_t most_of(std::uint32_t expert) const;
  [[nodiscard]] std::int64_t most_own() const { return most_to(routing_.experts) + routing_.shared * tokens_; }
  [[nodiscard]] std::int64_t most_computed() const;
  // The rows of an expert of this rank, and those that one rank has for another, if all experts are chosen equally often.
  [[nodiscard]] double usual_of(std::uint32_t expert) const;
  [[nodiscard]] std::int64_t usual_between() const;

  // Read from a report. own(): an expert's rows among the rank's own rows. computed(): the rows of an expert of this rank, one
  // block from each rank.
  [[nodiscard]] comm::Block own(const double* report, std::uint32_t expert) const;
  [[nodiscard]] std::vector<comm::Block> computed(const double* report, std::uint32_t expert) const;

  // Positions in a report.
  [[nodiscard]] std::int64_t report_size() const;
  [[nodiscard]] std::int64_t counts() const { return RoutingReport{routing_}.size(); }
  [[nodiscard]] PhaseExchange::Told there() const;  // from the ranks of the tokens to those of the experts
  [[nodiscard]] PhaseExchange::Told back() const { return {.sent = there().received, .received = there().sent}; }
  // Writes the sizes that there() reads, computed from the numbers at counts().
  void tell(double* report) const;

 private:
  [[nodiscard]] std::int64_t most_to(std::int64_t experts) const;  // rows for this many experts, of one rank's tokens
  // The rows that the tokens of rank `from` have for the experts of `rank`.
  [[nodiscard]] std::int64_t rows_between(const double* report, std::uint32_t from, std::uint32_t rank) const;
  [[nodiscard]] std::int64_t count(const double* report, std::uint32_t from, std::uint32_t expert) const;

  Routing routing_;
  ExpertParallel ranks_;
  std::int64_t tokens_, width_;
};

}  // namespace terrace::layers
