// Generates with the weights of a run or a model, one position after another. The keys and values of earlier positions are
// kept, so a text with the same beginning is only computed from where it differs.
//
// Owner:   the command. Threads: one. Errors: those of WeightsReader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/generate/sampling.h>
#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/examples/terrace/data/run_text.h>

namespace terrace::cli {

class Generator {
 public:
  // The arguments of WeightsReader. `positions`: the longest text.
  Generator(const RunConfig& config, const std::string& directory, std::int64_t positions);
  ~Generator();
  Generator(Generator&&) noexcept;
  Generator& operator=(Generator&&) noexcept;

  [[nodiscard]] std::int64_t positions() const;

  enum class End : std::uint8_t { end_of_text, full, length, interrupted };
  struct Limits {
    std::int64_t most_tokens = 0;
    std::function<bool()> interrupted = {};  // asked before each token; empty: never
  };
  // Appends tokens to `tokens` (the prompt, not empty) until a token ends the text; that token is appended, too. `take` gets
  // the text as it is generated, in whole characters; `ready` is called after the prompt, and with it all layers, has been
  // read.
  End generate(std::vector<std::int32_t>& tokens, const RunText& text, const lm::Sampling& sampling, const Limits& limits,
               const std::function<void()>& ready, const std::function<void(std::string_view)>& take);

 private:
  struct Parts;
  // The logits behind `token`, which is at the first position that is not known yet.
  std::vector<double> logits_behind(std::int32_t token);

  std::unique_ptr<Parts> parts_;
  std::vector<std::int32_t> known_;  // tokens whose keys and values are kept
};

const char* name_of(Generator::End end);

}  // namespace terrace::cli
