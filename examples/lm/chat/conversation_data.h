// Conversations as training sequences. They are already encoded (encoded_conversations.h): memory holds 16 bytes per document
// and 4 per line, and the tokens of a sequence are read when it is needed.
//
// A line is one document or several (answers.h); all documents of a line are held out, or all are used for training.
//
// One conversation in twenty is held out, at least one, unless there is only one; the choice does not depend on the seed. The
// others are packed into sequences in an order that depends on the seed, and each epoch visits the sequences in its own order.
// A conversation longer than a sequence is cut.
//
// Owner:   the caller. Threads: one at a time.
// Errors:  Error(ErrorKind::refused) for files without conversations, and if no conversation has anything to learn; from
//          fill(), the errors of EncodedConversations::read().
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <terrace/examples/lm/chat/encoded_conversations.h>
#include <terrace/examples/lm/chat/packing.h>
#include <terrace/examples/lm/data/sequences.h>

namespace terrace::lm {

class ConversationData final : public Sequences {
 public:
  // `files`: at least one, in order, all with the same room, which is the sequence length.
  ConversationData(std::vector<EncodedConversations> files, std::uint64_t seed, bool holds_out = true);

  [[nodiscard]] std::uint64_t sequences(Split split) const override { return packing(split).sequences(); }
  [[nodiscard]] std::uint64_t conversations() const { return first_.size(); }
  [[nodiscard]] std::uint64_t skipped() const;      // invalid lines
  [[nodiscard]] std::string first_skipped() const;  // its place, and the reason
  [[nodiscard]] std::uint64_t documents() const { return begins_.back(); }
  [[nodiscard]] std::uint64_t cut() const { return cut_; }  // documents longer than a sequence
  [[nodiscard]] std::uint64_t untaught() const {
    return untaught_;
  }                                            // documents without a learned token, because their answers are cut off
  [[nodiscard]] double share_cut_off() const;  // share of all answer tokens that are cut off
  [[nodiscard]] bool learns_held_out() const { return learns_held_out_; }  // otherwise the held-out part has no loss
  [[nodiscard]] std::vector<std::uint64_t> checksums() const;              // of the data files

  // Tokens and targets of sequences, row by row: conversation after conversation, then padding. The target is −1 where nothing
  // is learned. Sequences are numbered over all epochs.
  void fill(Split split, std::span<const std::uint64_t> sequences, std::span<std::int32_t> tokens,
            std::span<std::int32_t> targets) override;
  // The padding is a document, too. Does not read `tokens`.
  void number(Split split, std::span<const std::uint64_t> sequences, std::span<const std::int32_t> tokens,
              std::span<std::int32_t> numbers) const override;

 private:
  using Document = EncodedConversations::Document;
  [[nodiscard]] const Packing& packing(Split split) const { return split == Split::held_out ? held_out_ : training_; }
  // Documents are numbered over all files.
  [[nodiscard]] std::size_t file_of(std::uint32_t item) const;
  [[nodiscard]] const Document& document(std::uint32_t item) const;
  [[nodiscard]] std::uint64_t length(std::uint32_t item) const;  // at most the sequence length
  [[nodiscard]] std::span<const std::uint32_t> items_of(Split split, std::uint64_t sequence) const;

  std::vector<EncodedConversations> files_;
  std::vector<std::uint32_t> begins_{0};  // first document of each file, and the end
  std::uint64_t seq_len_, seed_, cut_ = 0, untaught_ = 0;
  bool learns_held_out_ = false;
  std::vector<std::uint32_t> first_;  // first document of each line
  Packing training_, held_out_;
};

}  // namespace terrace::lm
