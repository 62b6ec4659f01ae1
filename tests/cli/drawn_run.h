// A run drawn from a seed: command lines that must all end in the same bits. The first one keeps everything in memory; the
// others give it tight budgets, disks, stops, other ranks.
//
// The same seed and number draw the same run on every machine. Budgets are drawn as shares, because what a run needs is known
// only when its plan is asked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli_test.h"
#include "draw.h"

namespace terrace::test {

// The ranks, and what each of them holds.
struct Layout {
  std::uint64_t dp = 1, zero = 0, shard_group = 0, pp = 1;
  Words pipeline;  // --schedule and what belongs to it
  [[nodiscard]] std::uint64_t ranks() const { return dp * pp; }
};

// A budget between the least that a plan may need and all that it would use, as a user writes it.
struct Budget {
  bool given = false;
  double share = 1;
  std::uint64_t form = 0;    // bytes, an odd number of them, a prime, KB, MB with decimals, KiB
  std::int64_t off_by = 0;   // bytes
  bool at_the_edge = false;  // the smallest number of bytes that fits
};
std::string text_of(const Budget& budget, std::uint64_t least, std::uint64_t most);
std::string text_of_bytes(std::uint64_t bytes, std::uint64_t form);

// One command line: a run from its beginning, or from where the last one stopped.
struct Leg {
  std::uint64_t steps = 0;
  Layout layout;
  Words ways;  // settings that change no bit
  Budget device, host, disk;
  std::uint64_t disks = 0;             // --nvme-path, so many times
  bool commits = true;                 // a --durability that does
  bool processes = false;              // ranks are processes, not threads
  bool io_threads = false;             // reads and writes without io_uring
  bool saves = false;                  // --save
  std::uint64_t stopped_after_ms = 0;  // by SIGTERM, and continued; 0: not at all
};

struct DrawnRun {
  Words bits;                       // the model and all that reaches its bits
  std::uint64_t micro_batches = 1;  // of a step, on all ranks
  bool canonical = false;
  bool tokenizer = false;  // trained on ids, with the tokenizer that made them, and not on bytes
  Leg reference;
  std::vector<std::vector<Leg>> variants;  // each a run, in one or more legs
  Words wrong, wrong_says;                 // words that make the reference illegal, and what the refusal must name
  std::string prompt;
  Words sampling;  // of `terrace generate`
};
inline constexpr auto kTokenizerVocab = "281";  // of tokenizer.json, which no number of tiles or ranks divides
DrawnRun draw_run(std::uint64_t seed, std::uint64_t number);

// `terrace train` without budgets.
Words words_of(const DrawnRun& run, const Leg& leg);

}  // namespace terrace::test
