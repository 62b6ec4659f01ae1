// Where the documents of sequences begin and end, from their numbers or from a token that ends them.
//
// Numbers: one for each position, sequence after sequence; neighbouring positions of one sequence with the same number are a
// document. Pure. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace terrace {

// Numbers of sequences in which the token `separator`, itself the last one of its document, ends each document.
void number_documents(std::span<const std::int32_t> tokens, std::size_t positions, std::int32_t separator,
                      std::span<std::int32_t> numbers);
// A document's last token has no target, because what comes next is another document: −1.
void end_targets(std::span<const std::int32_t> numbers, std::size_t positions, std::span<std::int32_t> targets);
// The same of the separator itself, also where it is the last token of a sequence.
void end_targets_at(std::span<const std::int32_t> tokens, std::int32_t separator, std::span<std::int32_t> targets);
// Padding: positions behind the token that is the last target of their document, and all of a document without targets. Their
// targets become kPadding (core/targets.h).
void mark_padding(std::span<const std::int32_t> numbers, std::size_t positions, std::span<std::int32_t> targets);
// As Documents takes them: for each position that of its document's begin.
void find_begins(std::span<const std::int32_t> numbers, std::size_t positions, std::span<std::int32_t> begins);

}  // namespace terrace
