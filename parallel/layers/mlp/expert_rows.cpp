#include <terrace/parallel/layers/mlp/expert_rows.h>

#include <algorithm>

namespace terrace::layers {

std::int64_t ExpertRows::most_of(std::uint32_t expert) const {
  return !is_shared(expert) && routing_.capacity != 0 ? std::min(routing_.capacity, tokens_) : tokens_;
}

std::int64_t ExpertRows::most_to(std::int64_t experts) const {
  return std::min(std::min(routing_.chosen, experts) * tokens_, experts * most_of(0));
}

std::int64_t ExpertRows::most_computed() const {
  return are_dealt() ? ranks_.ranks * most_to(chosen_here()) + routing_.shared * tokens_ : most_own();
}

double ExpertRows::usual_of(std::uint32_t expert) const {
  const auto n = static_cast<double>(tokens_);
  if (is_shared(expert)) return n;
  return n * ranks_.ranks * static_cast<double>(routing_.chosen) / static_cast<double>(routing_.experts);
}

std::int64_t ExpertRows::usual_between() const { return tokens_ * routing_.chosen / ranks_.ranks; }

comm::Block ExpertRows::own(const double* report, std::uint32_t expert) const {
  const auto global = is_shared(expert) ? static_cast<std::uint32_t>(routing_.experts) + (expert - chosen_here())
                                        : ranks_.rank * chosen_here() + expert;
  const auto* const rows = report + RoutingReport::kRows;
  comm::Block block;
  for (std::uint32_t e = 0; e < global; ++e) block.begin += static_cast<std::int64_t>(rows[e]);
  block.count = static_cast<std::int64_t>(rows[global]);
  return block;
}

std::vector<comm::Block> ExpertRows::computed(const double* report, std::uint32_t expert) const {
  if (!are_dealt()) return {own(report, expert)};
  if (is_shared(expert)) return {{most_computed() - (here() - expert) * tokens_, tokens_}};
  std::vector<comm::Block> blocks;
  std::int64_t begin = 0;
  for (std::uint32_t from = 0; from < ranks_.ranks; ++from) {
    auto at = begin;
    const auto first = ranks_.rank * chosen_here();
    for (std::uint32_t e = 0; e < expert; ++e) at += count(report, from, first + e);
    blocks.push_back({at, count(report, from, first + expert)});
    begin += rows_between(report, from, ranks_.rank);
  }
  return blocks;
}

std::int64_t ExpertRows::report_size() const {
  return are_dealt() ? counts() + ranks_.ranks * (routing_.experts + 2) : counts();
}

PhaseExchange::Told ExpertRows::there() const {
  const auto sent = static_cast<std::uint32_t>(counts() + ranks_.ranks * routing_.experts);
  return {.sent = sent, .received = sent + ranks_.ranks};
}

void ExpertRows::tell(double* report) const {
  for (std::uint32_t other = 0; other < ranks_.ranks; ++other) {
    report[there().sent + other] = static_cast<double>(rows_between(report, ranks_.rank, other) * width_);
    report[there().received + other] = static_cast<double>(rows_between(report, other, ranks_.rank) * width_);
  }
}

std::int64_t ExpertRows::rows_between(const double* report, std::uint32_t from, std::uint32_t rank) const {
  std::int64_t rows = 0;
  for (std::uint32_t e = 0; e < chosen_here(); ++e) rows += count(report, from, rank * chosen_here() + e);
  return rows;
}

std::int64_t ExpertRows::count(const double* report, std::uint32_t from, std::uint32_t expert) const {
  return static_cast<std::int64_t>(report[counts() + from * routing_.experts + expert]);
}

}  // namespace terrace::layers
