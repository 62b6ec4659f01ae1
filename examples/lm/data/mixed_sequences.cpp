#include <terrace/examples/lm/data/mixed_sequences.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace terrace::lm {

MixedSequences::MixedSequences(Sources sources, const Mixture& mixture, std::uint64_t rows, Sources evaluated)
    : sources_(std::move(sources)), evaluated_(std::move(evaluated)), mixture_(mixture), numbered_(mixture), rows_(rows) {}

// A source with a share s of all sequences is trained on once after n / s of them.
std::uint64_t MixedSequences::sequences(Split split) const {
  if (split == Split::held_out) {
    std::uint64_t sum = 0;
    for (const auto& source : sources_) sum += source->sequences(Split::held_out);
    for (const auto& source : evaluated_) sum += source->sequences(Split::training);
    return sum;
  }
  double all = 0;
  for (std::size_t s = 0; s < sources_.size(); ++s)
    all = std::max(all, static_cast<double>(sources_[s]->sequences(Split::training)) / mixture_.share(s));
  return static_cast<std::uint64_t>(std::ceil(all));
}

MixedSequences::Place MixedSequences::place_of(Mixture& mixture, Split split, std::uint64_t sequence) const {
  if (split == Split::training) {
    const auto place = mixture.at(sequence);
    return {sources_[place.source].get(), split, place.sequence};
  }
  const auto& sources = evaluated_.empty() ? sources_ : evaluated_;
  const auto micro_batch = sequence / rows_, all = static_cast<std::uint64_t>(sources.size());
  auto* const source = sources[micro_batch % all].get();
  const auto of_source = micro_batch / all * rows_ + sequence % rows_;
  if (evaluated_.empty()) return {source, split, of_source};
  return {source, Split::training, of_source % source->sequences(Split::training)};  // the same sequences each time
}

void MixedSequences::fill(Split split, std::span<const std::uint64_t> sequences, std::span<std::int32_t> tokens,
                          std::span<std::int32_t> targets) {
  const auto each = sequences.empty() ? 0 : tokens.size() / sequences.size();
  for (std::size_t row = 0; row < sequences.size(); ++row) {
    const auto [source, own, sequence] = place_of(mixture_, split, sequences[row]);
    source->fill(own, {&sequence, 1}, tokens.subspan(row * each, each), targets.subspan(row * each, each));
  }
}

void MixedSequences::number(Split split, std::span<const std::uint64_t> sequences, std::span<const std::int32_t> tokens,
                            std::span<std::int32_t> numbers) const {
  const auto each = sequences.empty() ? 0 : tokens.size() / sequences.size();
  for (std::size_t row = 0; row < sequences.size(); ++row) {
    const auto [source, own, sequence] = place_of(numbered_, split, sequences[row]);
    source->number(own, {&sequence, 1}, tokens.subspan(row * each, each), numbers.subspan(row * each, each));
  }
}

}  // namespace terrace::lm
