// Conversations as training sequences. They are encoded already (encoded_conversations.h); of each document 16 bytes stay, and
// of each line 4. The tokens of a sequence are read when it is needed.
//
// A line is one document, or several (answers.h), which are held out or learned together.
//
// One conversation in twenty is held out, and at least one, unless there is no other; which ones does not depend on the seed.
// The others are packed into sequences, in an order from the seed, and the sequences of each epoch have an order of their own.
// A conversation that is longer than a sequence is cut.
//
// Owner:   the caller. Threads: one at a time.
// Errors:  Error(Exit::usage) for files without conversations, and if nothing is learned from any of them; of fill(), those of
//          EncodedConversations::read().
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <terrace/examples/lm/chat/encoded_conversations.h>
#include <terrace/examples/lm/chat/packing.h>

namespace terrace::lm {

class ConversationData {
 public:
  // Files in order, all with the room of a sequence; at least one.
  ConversationData(std::vector<EncodedConversations> files, std::uint64_t seed, bool holds_out = true);

  [[nodiscard]] std::uint64_t sequences(bool held_out) const { return (held_out ? held_out_ : training_).sequences(); }
  [[nodiscard]] std::uint64_t conversations() const { return first_.size(); }
  [[nodiscard]] std::uint64_t skipped() const;      // lines that are no conversations
  [[nodiscard]] std::string first_skipped() const;  // where, and why
  [[nodiscard]] std::uint64_t documents() const { return begins_.back(); }
  [[nodiscard]] std::uint64_t cut() const { return cut_; }  // documents that are longer than a sequence
  [[nodiscard]] std::uint64_t untaught() const {
    return untaught_;
  }                                            // from which nothing is learned: their answers are cut off
  [[nodiscard]] double share_cut_off() const;  // of the tokens of all answers
  [[nodiscard]] bool learns_held_out() const { return learns_held_out_; }  // otherwise they have no loss
  [[nodiscard]] std::vector<std::uint64_t> checksums() const;              // of the data files

  // Tokens and targets of sequences, row by row: conversation after conversation, then padding. A target that is not learned is
  // −1. Sequences are numbered over all epochs.
  void fill(bool held_out, std::span<const std::uint64_t> sequences, std::span<std::int32_t> tokens,
            std::span<std::int32_t> targets);
  // As parallel/train/documents.h has it: the padding is a document, too.
  void number(bool held_out, std::span<const std::uint64_t> sequences, std::span<std::int32_t> numbers) const;

 private:
  using Document = EncodedConversations::Document;
  // Documents are numbered through all files.
  [[nodiscard]] std::size_t file_of(std::uint32_t item) const;
  [[nodiscard]] const Document& document(std::uint32_t item) const;
  [[nodiscard]] std::uint64_t length(std::uint32_t item) const;  // at most a sequence
  [[nodiscard]] std::span<const std::uint32_t> items_of(bool held_out, std::uint64_t sequence) const;

  std::vector<EncodedConversations> files_;
  std::vector<std::uint32_t> begins_{0};  // of each file's documents, and the end
  std::uint64_t seq_len_, seed_, cut_ = 0, untaught_ = 0;
  bool learns_held_out_ = false;
  std::vector<std::uint32_t> first_;  // document of each line
  Packing training_, held_out_;
};

}  // namespace terrace::lm
