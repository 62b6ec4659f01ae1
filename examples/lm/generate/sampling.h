// Draws the next token from a model's logits: repetition penalty, temperature, top-k and top-p, in this order.
//
// Pure: the same logits, settings, seed and position give the same token. Threads: any.
// Errors:  Error(ErrorKind::failed) if the logits are no distribution (NaN, +∞, or only −∞).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace terrace::lm {

struct Sampling {
  double temperature = 0.8;       // 0: always the likeliest token
  std::int64_t top_k = 40;        // sample from this number of likeliest tokens; 0: from all
  double top_p = 1;               // and from the fewest of them whose probabilities reach this sum; 1: from all
  double repetition_penalty = 1;  // logits of tokens already seen are divided by it, or multiplied if negative; 1: none
  std::uint64_t seed = 1;
};

// The likeliest comes first; of equally likely ones, the lowest token. `probability`: after all rules, 0 to 1.
struct Candidate {
  std::int32_t token = 0;
  double probability = 0;
};
// All tokens that the rules keep; with temperature 0, one.
std::vector<Candidate> candidates(std::vector<double> logits, const Sampling& sampling, std::span<const std::int32_t> seen);

// `seen`: the prompt and the generated tokens. `position` selects the random number, so the text does not depend on how often
// the generator was used before.
std::int32_t sample(std::vector<double> logits, const Sampling& sampling, std::span<const std::int32_t> seen,
                    std::uint64_t position);

}  // namespace terrace::lm
