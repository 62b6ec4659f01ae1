#include <terrace/examples/lm/data/token_sequences.h>

#include <utility>

#include <terrace/parallel/train/documents.h>

namespace terrace::lm {

TokenSequences::TokenSequences(Corpus corpus, std::uint64_t seq_len, std::uint64_t seed, std::int32_t separator, bool holds_out)
    : corpus_(std::move(corpus)),
      plan_(plan_sequences(corpus_.tokens(), seq_len, holds_out)),
      seed_(seed),
      separator_(separator) {}

std::uint64_t TokenSequences::sequences(Split split) const {
  return split == Split::training ? plan_.training_sequences : plan_.evaluation_sequences;
}

void TokenSequences::fill(Split split, std::span<const std::uint64_t> sequences, std::span<std::int32_t> tokens,
                          std::span<std::int32_t> targets) {
  for (std::size_t row = 0; row < sequences.size(); ++row) {
    const auto start = split == Split::training ? plan_.sequence_start(seed_, sequences[row])
                                                : plan_.evaluation_start(sequences[row] % plan_.evaluation_sequences);
    const auto of_row = [&](auto all) { return all.subspan(row * plan_.seq_len, plan_.seq_len); };
    corpus_.fill({&start, 1}, plan_.seq_len, of_row(tokens), of_row(targets));
    // Every separator ends a document, even if a sequence ends with it.
    if (separator_ >= 0) training::end_targets_at(of_row(tokens), separator_, of_row(targets));
  }
}

void TokenSequences::number(Split, std::span<const std::uint64_t>, std::span<const std::int32_t> tokens,
                            std::span<std::int32_t> numbers) const {
  training::number_documents(tokens, plan_.seq_len, separator_, numbers);
}

}  // namespace terrace::lm
