// Finds where documents begin and end in sequences, from their numbers or from a token that ends them.
//
// Numbers: one for each position, sequence after sequence; neighbouring positions of one sequence with the same number are a
// document. Pure. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace terrace::training {

// Numbers the documents of sequences in which the token `separator` ends each document and is its last token.
void number_documents(std::span<const std::int32_t> tokens, std::size_t positions, std::int32_t separator,
                      std::span<std::int32_t> numbers);
// Sets the target of each document's last token to −1, because the next token belongs to another document.
void end_targets(std::span<const std::int32_t> numbers, std::size_t positions, std::span<std::int32_t> targets);
// Does the same for each separator, including one that is the last token of a sequence.
void end_targets_at(std::span<const std::int32_t> tokens, std::int32_t separator, std::span<std::int32_t> targets);
// Marks padding: the positions after the token that is the last target of their document, and all positions of a document
// without targets. Their targets become kPadding (core/math/targets.h).
void mark_padding(std::span<const std::int32_t> numbers, std::size_t positions, std::span<std::int32_t> targets);
// Writes for each position the position where its document begins, as Documents needs them.
void find_begins(std::span<const std::int32_t> numbers, std::size_t positions, std::span<std::int32_t> begins);

}  // namespace terrace::training
