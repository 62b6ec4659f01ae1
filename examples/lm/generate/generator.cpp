#include <terrace/examples/lm/generate/generator.h>

#include <algorithm>
#include <utility>

namespace terrace::lm {
namespace {

std::vector<double> as_doubles(const TensorView& logits) {
  std::vector<double> out(static_cast<std::size_t>(logits.elements()));
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = logits.dtype == DType::fp64   ? logits.as<double>()[i]
             : logits.dtype == DType::bf16 ? static_cast<double>(static_cast<float>(logits.as<bf16>()[i]))
             : logits.dtype == DType::fp16 ? static_cast<double>(static_cast<float>(logits.as<fp16>()[i]))
                                           : static_cast<double>(logits.as<float>()[i]);
  return out;
}

}  // namespace

Generator::Generator(Engine& engine, Device& device, std::int64_t vocab, DType dtype, std::int64_t positions)
    : engine_(&engine),
      positions_(positions),
      memory_(device.host_memory()),
      room_(memory_->allocate(static_cast<std::size_t>(vocab) * size_of(dtype))),
      logits_{room_.data(), dtype, {1, vocab}} {}

std::vector<double> Generator::logits_behind(std::int32_t token) {
  engine_->decode({.tokens = {&token, 1},
                   .targets = {},
                   .update = {},
                   .weights = {},
                   .logits = logits_,
                   .position = static_cast<std::int64_t>(known_.size())});
  known_.push_back(token);
  return as_doubles(logits_);
}

Generator::End Generator::generate(std::vector<std::int32_t>& tokens, const ModelText& text, const Sampling& sampling,
                                   const Limits& limits, const std::function<void()>& ready,
                                   const std::function<void(std::string_view)>& take) {
  // The beginning that this text shares with the known one is not computed again, except the prompt's last token, because its
  // logits are not kept.
  const auto same = std::ranges::mismatch(known_, tokens).in1 - known_.begin();
  known_.resize(std::min(static_cast<std::size_t>(same), tokens.size() - 1));
  std::vector<double> logits;
  const auto interrupted = [&] { return limits.interrupted && limits.interrupted(); };
  while (known_.size() < tokens.size()) {
    if (interrupted()) return End::interrupted;
    logits = logits_behind(tokens[known_.size()]);
  }
  ready();
  auto decoded = text.stream();
  const auto end = [&](End why) {
    if (const auto rest = decoded.finish(); !rest.empty()) take(rest);
    return why;
  };
  for (std::int64_t made = 0;; ++made) {
    if (made == limits.most_tokens) return end(End::length);
    if (std::cmp_equal(tokens.size(), positions_)) return end(End::full);
    if (interrupted()) return end(End::interrupted);
    if (made > 0) logits = logits_behind(tokens.back());
    logits.resize(std::min(logits.size(), text.tokens()));  // training on text never reaches the other rows of the vocabulary
    tokens.push_back(sample(std::move(logits), sampling, tokens, tokens.size() - 1));
    if (text.ends(tokens.back())) return end(End::end_of_text);
    if (const auto more = decoded.add(tokens.back()); !more.empty()) take(more);
  }
}

const char* name_of(Generator::End end) {
  switch (end) {
    case Generator::End::end_of_text: return "end of text";
    case Generator::End::full: return "all positions";
    case Generator::End::length: return "max tokens";
    case Generator::End::interrupted: return "interrupted";
  }
  return "";
}

}  // namespace terrace::lm
