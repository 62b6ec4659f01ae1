// A run drawn from a seed: command lines that must all give the same bits. The first one keeps everything in memory; the others
// use tight budgets, disks, stops, other ranks.
//
// The same seed and number draw the same run on every machine. Budgets are drawn as shares, because the need of a run is only
// known from its plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <terrace/tests/cli/cli_test.h>
#include <terrace/tests/cli/drawn/draw.h>

namespace terrace::test {

// The ranks and how state is divided among them.
struct Layout {
  std::uint64_t dp = 1, zero = 0, shard_group = 0, pp = 1;
  Words pipeline;  // --schedule and its settings
  [[nodiscard]] std::uint64_t ranks() const { return dp * pp; }
};

// A budget between the least and the whole need of a plan, in a user's spelling.
struct Budget {
  bool given = false;
  double share = 1;
  std::uint64_t form = 0;    // bytes, an odd number of bytes, a prime, KB, MB with decimals, KiB
  std::int64_t off_by = 0;   // bytes
  bool at_the_edge = false;  // the smallest number of bytes that fits
};
std::string text_of(const Budget& budget, std::uint64_t least, std::uint64_t most);
std::string text_of_bytes(std::uint64_t bytes, std::uint64_t form);

// One command line: a run from its beginning, or from the last stop.
struct Leg {
  std::uint64_t steps = 0;
  Layout layout;
  Words ways;  // settings that change no bit
  Budget device, host, disk;
  std::uint64_t disks = 0;             // number of --nvme-path directories
  bool commits = true;                 // a --durability with commits
  bool processes = false;              // ranks are processes, not threads
  bool io_threads = false;             // reads and writes without io_uring
  bool saves = false;                  // --save
  std::uint64_t stopped_after_ms = 0;  // stopped by SIGTERM, then continued; 0: not stopped
};

struct DrawnRun {
  Words bits;                       // the model and everything that affects its bits
  std::uint64_t micro_batches = 1;  // per step, on all ranks together
  bool canonical = false;
  bool tokenizer = false;  // trained on ids with a tokenizer, not on bytes
  Leg reference;
  std::vector<std::vector<Leg>> variants;  // each is a run of one or more legs
  Words wrong, wrong_says;                 // words that make the reference illegal, and what the refusal must name
  std::string prompt;
  Words sampling;  // for `terrace generate`
};
inline constexpr auto kTokenizerVocab = "281";  // of tokenizer.json; not divisible by any number of tiles or ranks
DrawnRun draw_run(std::uint64_t seed, std::uint64_t number);

// `terrace train` without budgets.
Words words_of(const DrawnRun& run, const Leg& leg);

}  // namespace terrace::test
