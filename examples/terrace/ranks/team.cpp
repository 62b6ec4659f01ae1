#include <terrace/examples/terrace/ranks/team.h>

#include <algorithm>
#include <exception>

#include <terrace/core/base/units.h>

namespace terrace::cli {

Team::Team(std::unique_ptr<Communicator> ranks, bool processes)
    : pool_(std::make_unique<ThreadPool>(1)),
      host_(make_cpu_device(*pool_)),
      ranks_(std::move(ranks)),
      agreement_(std::make_unique<Agreement>(*ranks_, *host_)),
      processes_(processes) {}

std::vector<int> Team::machines() const {
  if (!ranks_) return {1};
  const auto& machines = ranks_->machines();
  std::vector<int> sizes;
  for (int m = 0; m < machines.count(); ++m) sizes.push_back(machines.size(m));
  return sizes;
}

void Team::together(const std::function<void()>& work) {
  if (!agreement_) return work();
  std::exception_ptr error;
  double failure = 0;  // 1 + the kind of the error
  try {
    work();
  } catch (const Error& e) {
    error = std::current_exception();
    failure = 1 + static_cast<double>(e.kind());
  } catch (...) {
    error = std::current_exception();
    failure = 1 + static_cast<double>(ErrorKind::failed);
  }
  const auto failures = each(failure);
  const auto failed = std::ranges::find_if(failures, [](double f) { return f != 0; });
  if (failed == failures.end()) return;
  if (failed - failures.begin() == rank()) std::rethrow_exception(error);
  throw Elsewhere(static_cast<ErrorKind>(*failed - 1));
}

std::vector<double> Team::each(double mine) { return agreement_ ? agreement_->each(mine) : std::vector{mine}; }

// A double holds six bytes exactly.
std::vector<std::string> Team::texts(const std::string& mine) {
  constexpr std::size_t kBytes = 6;
  const auto sizes = each(static_cast<double>(mine.size()));
  std::vector<std::string> all(sizes.size());
  for (std::size_t at = 0; static_cast<double>(at) < std::ranges::max(sizes); at += kBytes) {
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < kBytes && at + i < mine.size(); ++i)
      bytes |= std::uint64_t{static_cast<unsigned char>(mine[at + i])} << (8 * i);
    const auto some = each(static_cast<double>(bytes));
    for (std::size_t r = 0; r < all.size(); ++r)
      for (std::size_t i = 0; i < kBytes && static_cast<double>(at + i) < sizes[r]; ++i)
        all[r] += static_cast<char>(static_cast<std::uint64_t>(some[r]) >> (8 * i));
  }
  return all;
}

std::uint64_t Team::least(std::uint64_t mine) {
  if (!agreement_) return mine;
  const auto least = agreement_->min(static_cast<double>(mine));
  return least >= static_cast<double>(kUnlimited) ? kUnlimited : static_cast<std::uint64_t>(least);
}

// Byte counts are exact as fp64.
std::uint64_t Team::max(std::uint64_t mine) {
  return agreement_ ? static_cast<std::uint64_t>(agreement_->max(static_cast<double>(mine))) : mine;
}

std::uint64_t Team::sum(std::uint64_t mine) {
  std::uint64_t all = 0;
  for (const double one : each(static_cast<double>(mine))) all += static_cast<std::uint64_t>(one);
  return all;
}

}  // namespace terrace::cli
