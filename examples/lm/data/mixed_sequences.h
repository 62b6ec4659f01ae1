// Several sources of sequences, which are mixed by their weights for training (mixture.h). An evaluation is never mixed: its
// micro-batches take the sources in turn.
//
// Owner:   the caller; shares the sources. Threads: one at a time. Errors: those of the sources.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <terrace/examples/lm/data/mixture.h>
#include <terrace/examples/lm/data/sequences.h>

namespace terrace::lm {

class MixedSequences final : public Sequences {
 public:
  using Sources = std::vector<std::shared_ptr<Sequences>>;
  // `rows`: sequences of a micro-batch. `evaluated`: sources whose training sequences are the held-out ones; empty: those that
  // `sources` hold out.
  MixedSequences(Sources sources, const Mixture& mixture, std::uint64_t rows, Sources evaluated = {});

  // After which each source has been trained on at least once; held out: of all sources together.
  [[nodiscard]] std::uint64_t sequences(Split split) const override;
  void fill(Split split, std::span<const std::uint64_t> sequences, std::span<std::int32_t> tokens,
            std::span<std::int32_t> targets) override;
  void number(Split split, std::span<const std::uint64_t> sequences, std::span<const std::int32_t> tokens,
              std::span<std::int32_t> numbers) const override;

 private:
  struct Place {
    Sequences* source = nullptr;
    Split split = Split::training;  // within the source
    std::uint64_t sequence = 0;
  };
  [[nodiscard]] Place place_of(Mixture& mixture, Split split, std::uint64_t sequence) const;

  Sources sources_, evaluated_;
  Mixture mixture_;
  mutable Mixture numbered_;  // for number(), which follows fill(); a mixture is fast only in ascending order
  std::uint64_t rows_;
};

}  // namespace terrace::lm
