// Generates with the weights of an engine, one position after another. The keys and values of earlier positions are kept, so a
// text with the same beginning is only computed from where it differs.
//
// Owner:   the caller; borrows the engine and its device. Threads: the engine's. Errors: those of Engine::decode() and
// sample().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include <terrace/core/device/device.h>
#include <terrace/examples/lm/generate/model_text.h>
#include <terrace/examples/lm/generate/sampling.h>
#include <terrace/parallel/run/engine.h>

namespace terrace::lm {

class Generator {
 public:
  // `engine`: planned for generation (PlanRequest::decode_positions) of texts of at most `positions` tokens. `vocab`: the
  // model's, and `dtype` that of its activations.
  Generator(Engine& engine, Device& device, std::int64_t vocab, DType dtype, std::int64_t positions);

  [[nodiscard]] std::int64_t positions() const { return positions_; }

  enum class End : std::uint8_t { end_of_text, full, length, interrupted };
  struct Limits {
    std::int64_t most_tokens = 0;
    std::function<bool()> interrupted = {};  // asked before each token; empty: never
  };
  // Appends tokens to `tokens` (the prompt, not empty) until a token ends the text; that token is appended, too. `take` gets
  // the text as it is generated, in whole characters; `ready` is called after the prompt, and with it all layers, has been
  // read.
  End generate(std::vector<std::int32_t>& tokens, const ModelText& text, const Sampling& sampling, const Limits& limits,
               const std::function<void()>& ready, const std::function<void(std::string_view)>& take);

 private:
  // The logits behind `token`, which is at the first position that is not known yet.
  std::vector<double> logits_behind(std::int32_t token);

  Engine* engine_;
  std::int64_t positions_;
  std::shared_ptr<MemoryResource> memory_;
  Slab room_;
  TensorView logits_;
  std::vector<std::int32_t> known_;  // tokens whose keys and values are kept
};

const char* name_of(Generator::End end);

}  // namespace terrace::lm
