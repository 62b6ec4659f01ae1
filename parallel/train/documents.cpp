#include <terrace/parallel/train/documents.h>

#include <stdexcept>

#include <terrace/core/math/targets.h>

namespace terrace::training {
namespace {

void demand_sizes(std::size_t numbers, std::size_t positions, std::size_t others) {
  if (positions == 0 || numbers % positions != 0 || others != numbers)
    throw std::logic_error("documents: there must be a number for each position of whole sequences");
}

}  // namespace

void number_documents(std::span<const std::int32_t> tokens, std::size_t positions, std::int32_t separator,
                      std::span<std::int32_t> numbers) {
  demand_sizes(numbers.size(), positions, tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i)
    numbers[i] = i % positions == 0 ? 0 : numbers[i - 1] + (tokens[i - 1] == separator ? 1 : 0);
}

void end_targets(std::span<const std::int32_t> numbers, std::size_t positions, std::span<std::int32_t> targets) {
  demand_sizes(numbers.size(), positions, targets.size());
  for (std::size_t i = 1; i < numbers.size(); ++i)
    if (i % positions != 0 && numbers[i] != numbers[i - 1]) targets[i - 1] = math::kNoTarget;
}

void end_targets_at(std::span<const std::int32_t> tokens, std::int32_t separator, std::span<std::int32_t> targets) {
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] == separator) targets[i] = math::kNoTarget;
}

void mark_padding(std::span<const std::int32_t> numbers, std::size_t positions, std::span<std::int32_t> targets) {
  demand_sizes(numbers.size(), positions, targets.size());
  bool depends = false;  // this position or a later one of the document has a target
  for (auto i = numbers.size(); i-- > 0;) {
    const bool ends_document = (i + 1) % positions == 0 || numbers[i + 1] != numbers[i];
    const bool begins_document = i % positions == 0 || numbers[i - 1] != numbers[i];
    if (ends_document) depends = false;
    depends = depends || targets[i] >= 0;
    const bool is_target = !begins_document && targets[i - 1] >= 0;  // the previous position has this one as its target
    if (!depends && !is_target) targets[i] = math::kPadding;
  }
}

void find_begins(std::span<const std::int32_t> numbers, std::size_t positions, std::span<std::int32_t> begins) {
  demand_sizes(numbers.size(), positions, begins.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto p = i % positions;
    begins[i] = p == 0 ? 0 : numbers[i] == numbers[i - 1] ? begins[i - 1] : static_cast<std::int32_t>(p);
  }
}

}  // namespace terrace::training
