#include <terrace/examples/terrace/run/generator.h>

#include <algorithm>
#include <utility>

#include <terrace/examples/terrace/run/weights_reader.h>

namespace terrace::cli {
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

struct Generator::Parts {
  Parts(const RunConfig& config, const std::string& directory, std::int64_t of_positions)
      : positions(of_positions),
        weights(config, directory, {.decode_positions = of_positions}),
        memory(weights.device().host_memory()),
        logits(memory->allocate(static_cast<std::size_t>(config.vocab) * size_of(weights.model().dtype))) {}
  std::int64_t positions;
  WeightsReader weights;
  decltype(std::declval<Device&>().host_memory()) memory;
  Slab logits;
};

Generator::Generator(const RunConfig& config, const std::string& directory, std::int64_t positions)
    : parts_(std::make_unique<Parts>(config, directory, positions)) {}
Generator::~Generator() = default;
Generator::Generator(Generator&&) noexcept = default;
Generator& Generator::operator=(Generator&&) noexcept = default;

std::int64_t Generator::positions() const { return parts_->positions; }

std::vector<double> Generator::logits_behind(std::int32_t token) {
  auto& weights = parts_->weights;
  const TensorView view{parts_->logits.data(), weights.model().dtype, {1, weights.config().vocab}};
  weights.engine().decode({.tokens = {&token, 1},
                           .targets = {},
                           .update = {},
                           .weights = {},
                           .logits = view,
                           .position = static_cast<std::int64_t>(known_.size())});
  known_.push_back(token);
  return as_doubles(view);
}

Generator::End Generator::generate(std::vector<std::int32_t>& tokens, const RunText& text, const lm::Sampling& sampling,
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
    if (std::cmp_equal(tokens.size(), parts_->positions)) return end(End::full);
    if (interrupted()) return end(End::interrupted);
    if (made > 0) logits = logits_behind(tokens.back());
    logits.resize(std::min(logits.size(), text.tokens()));  // training on text never reaches the other rows of the vocabulary
    tokens.push_back(lm::sample(std::move(logits), sampling, tokens, tokens.size() - 1));
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

}  // namespace terrace::cli
