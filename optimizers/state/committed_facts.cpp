#include <terrace/optimizers/state/committed_facts.h>

#include <sstream>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/printable.h>

namespace terrace::rules {
namespace {

constexpr const char* kMark = "optimizer-state-1";

}  // namespace

std::string with_facts(const CommittedFacts& f, const std::string& payload) {
  return fmt::format("{} {} {} {} {} {}\n{}", kMark, f.optimizer, f.recipe, f.chunk_elements, f.updates, f.seed, payload);
}

CommittedFacts resumed_facts(const CommittedFacts& wanted, const std::string& committed, const std::string& store,
                             std::string& payload) {
  const auto end = committed.find('\n');
  std::istringstream line(committed.substr(0, end));
  std::string mark;
  CommittedFacts found;
  line >> mark >> found.optimizer >> found.recipe >> found.chunk_elements >> found.updates >> found.seed;
  if (line.fail() || mark != kMark || end == std::string::npos || found.chunk_elements == 0)
    throw Error(
        fmt::format("{}: its last commit was not made by an OptimizerState of this version\n  give another store", store),
        ErrorKind::refused, {.path = store});
  if (found.optimizer != wanted.optimizer || found.recipe != wanted.recipe)
    throw Error(
        fmt::format("{} has the states of {} with the recipe {}, not of {} with {}\n  give the same ones, or another "
                    "store",
                    store, base::printable(found.optimizer), base::printable(found.recipe), wanted.optimizer, wanted.recipe),
        ErrorKind::refused, {.path = store});
  payload = committed.substr(end + 1);
  return found;
}

}  // namespace terrace::rules
