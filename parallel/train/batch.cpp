#include <terrace/parallel/train/batch.h>

#include <algorithm>

#include <terrace/core/math/targets.h>
#include <terrace/parallel/train/documents.h>

namespace terrace {

bool BatchReader::operator()(Split split, std::span<const std::uint64_t> sequences, Batch& to) const {
  to.tokens.resize(sequences.size() * positions_);
  to.targets.resize(to.tokens.size());
  std::vector<std::int32_t> all_tokens, all_targets;
  std::span<std::int32_t> tokens = to.tokens, targets = to.targets;
  const bool sliced = context_.ranks > 1;
  if (sliced) {
    all_tokens.resize(sequences.size() * whole());
    all_targets.resize(all_tokens.size());
    tokens = all_tokens;
    targets = all_targets;
  }
  if (!read_(split, sequences, tokens, targets)) return false;
  if (has_documents()) {
    std::vector<std::int32_t> numbers(tokens.size());
    number_(split, sequences, tokens, numbers);
    training::end_targets(numbers, whole(), targets);
    training::mark_padding(numbers, whole(), targets);
    to.document_begins.resize(tokens.size());
    training::find_begins(numbers, whole(), to.document_begins);
  }
  to.counted = count(targets, 0);
  to.real = count(targets, math::kNoTarget);
  if (sliced) {
    slice(tokens, to.tokens);
    slice(targets, to.targets);
  }
  return true;
}

void BatchReader::slice(std::span<const std::int32_t> all, std::span<std::int32_t> to) const {
  auto at = to.begin();
  for (auto sequence = all.begin(); sequence != all.end(); sequence += static_cast<std::ptrdiff_t>(whole()))
    for (const auto& [begin, count] : context_.runs(static_cast<std::int64_t>(positions_)))
      at = std::copy_n(sequence + begin, count, at);
}

std::vector<double> BatchReader::count(std::span<const std::int32_t> targets, std::int32_t least) const {
  const auto each = rows_ * whole();
  std::vector<double> counted(targets.size() / each, static_cast<double>(each));
  if (!has_documents()) return counted;
  for (std::size_t i = 0; i < counted.size(); ++i)
    counted[i] =
        static_cast<double>(std::ranges::count_if(targets.subspan(i * each, each), [least](auto t) { return t >= least; }));
  return counted;
}

}  // namespace terrace
