// Files of JSON lines, or of one JSON array, as training sequences. The constructor reads all files once, checks each line, and
// keeps where it begins, how many tokens it has and its checksum: 36 bytes a line. A sequence is read and encoded when it is
// needed.
//
// A line is one document, or several (answers.h), which are held out or learned together.
//
// One conversation in twenty is held out, and at least one, unless there is no other; which ones does not depend on the seed.
// The others are packed into sequences, in an order from the seed, and the sequences of each epoch have an order of their own.
// A conversation that is longer than a sequence is cut.
//
// Owner:   the caller; borrows the tokenizer and the format. Threads: one at a time.
// Errors:  Error(Exit::usage) with file, line and what to do, for a file that cannot be read, a line that is no conversation,
//          for files without conversations, and if nothing is learned from any of them; Error(Exit::runtime) for a line that
//          has changed later.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <terrace/examples/lm/chat/chat_format.h>
#include <terrace/examples/lm/chat/packing.h>
#include <terrace/examples/lm/corpus_file.h>

namespace terrace::lm {

enum class BadLine : std::uint8_t { stop, skip };  // what becomes of a line that is no conversation

class ConversationData {
 public:
  ConversationData(const std::vector<std::filesystem::path>& files, const ChatFormat& format, std::uint64_t seq_len,
                   std::uint64_t seed, bool holds_out = true, BadLine bad = BadLine::stop);

  [[nodiscard]] std::uint64_t sequences(bool held_out) const { return (held_out ? held_out_ : training_).sequences(); }
  [[nodiscard]] std::uint64_t conversations() const { return first_.size(); }
  [[nodiscard]] std::uint64_t skipped() const { return skipped_; }                   // lines that are no conversations
  [[nodiscard]] const std::string& first_skipped() const { return first_skipped_; }  // where, and why
  [[nodiscard]] std::uint64_t documents() const { return index_.size(); }
  [[nodiscard]] std::uint64_t cut() const { return cut_; }  // documents that are longer than a sequence
  [[nodiscard]] std::uint64_t untaught() const {
    return untaught_;
  }                                            // from which nothing is learned: their answers are cut off
  [[nodiscard]] double share_cut_off() const;  // of the tokens of all answers
  [[nodiscard]] bool learns_held_out() const { return learns_held_out_; }                   // otherwise they have no loss
  [[nodiscard]] const std::vector<std::uint64_t>& checksums() const { return checksums_; }  // of the files

  // Tokens and targets of sequences, row by row: conversation after conversation, then padding. A target that is not learned is
  // −1. Sequences are numbered over all epochs.
  void fill(bool held_out, std::span<const std::uint64_t> sequences, std::span<std::int32_t> tokens,
            std::span<std::int32_t> targets);
  // As parallel/train/documents.h has it: the padding is a document, too.
  void number(bool held_out, std::span<const std::uint64_t> sequences, std::span<std::int32_t> numbers) const;

 private:
  struct Entry {
    std::uint64_t offset = 0;
    std::uint32_t file = 0, bytes = 0, tokens = 0;  // tokens: at most seq_len_
    std::uint32_t part = 0;                         // of the documents of its line
    std::uint32_t checksum = 0;                     // of the line
  };
  void scan(std::uint32_t file, std::vector<bool>& learns);
  // Each element of the array is as a line; `begin`: behind its bracket.
  void scan_array(std::uint32_t file, std::uint64_t begin, std::vector<bool>& learns);
  void add(std::uint32_t file, std::uint64_t offset, const std::string& place, std::string_view line,
           std::vector<bool>& learns);
  [[nodiscard]] std::span<const std::uint32_t> items_of(bool held_out, std::uint64_t sequence) const;
  [[nodiscard]] ChatFormat::Encoded read(const Entry& entry);

  std::vector<std::filesystem::path> files_;
  const ChatFormat* format_;
  std::uint64_t seq_len_, seed_, cut_ = 0, untaught_ = 0, answer_tokens_ = 0, learned_tokens_ = 0;
  bool learns_held_out_ = false;
  BadLine bad_ = BadLine::stop;
  std::uint64_t skipped_ = 0;
  std::string first_skipped_;
  std::vector<std::uint64_t> checksums_;
  std::vector<Entry> index_;
  std::vector<std::uint32_t> first_;  // of each line in index_
  Packing training_, held_out_;
  Encoding encoding_;
};

}  // namespace terrace::lm
