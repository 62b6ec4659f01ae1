// The borders of documents in sequences. A sequence may hold several documents, one after the other: attention does not cross
// their borders, and positions count from a document's begin. Padding is a document whose positions have no target.
//
// Owner:   borrows the begins, which must live as long as the step that uses them.
// Threads: values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <terrace/parallel/comm/call.h>

namespace terrace::model {

class Documents {
 public:
  Documents() = default;  // every sequence is one document
  // begins[b · positions + p]: the position in sequence b where the document of its position p begins.
  Documents(std::span<const std::int32_t> begins, std::int64_t positions) : begins_(begins), positions_(positions) {}

  [[nodiscard]] bool whole_sequences() const { return begins_.empty(); }

  // The documents of the sequences from this one on.
  [[nodiscard]] Documents from(std::int64_t sequence) const {
    if (whole_sequences()) return {};
    return {begins_.subspan(static_cast<std::size_t>(sequence * positions_)), positions_};
  }

  // Adjacent positions of one document. `document` is the position where it begins, which may lie on an earlier rank.
  struct Piece {
    std::int64_t begin = 0, count = 0, document = 0;
    friend bool operator==(const Piece&, const Piece&) = default;
  };
  // A run of a sequence's positions, cut at the borders of its documents.
  [[nodiscard]] std::vector<Piece> pieces(std::int64_t sequence, comm::Block run) const {
    if (whole_sequences()) return {{run.begin, run.count, 0}};
    std::vector<Piece> all;
    const auto* const begins = begins_.data() + sequence * positions_;
    for (std::int64_t p = run.begin; p < run.begin + run.count; ++p) {
      if (all.empty() || begins[p] != all.back().document) all.push_back({p, 0, begins[p]});
      ++all.back().count;
    }
    return all;
  }

 private:
  std::span<const std::int32_t> begins_;
  std::int64_t positions_ = 0;
};

}  // namespace terrace::model
