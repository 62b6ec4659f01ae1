#include <terrace/core/cuda/recorded_algorithms.h>

#include <charconv>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/error.h>

namespace terrace::cuda {

std::string to_string(const AttentionSubject& subject) {
  return fmt::format("attention bf16 {}, head dim {}", subject.backward ? "backward" : "forward", subject.head_dim);
}

RecordedAlgorithms::RecordedAlgorithms(std::string_view text, std::string_view where) {
  constexpr std::string_view kBegin = "matmul ", kAttention = "attention bf16 ", kWords = ", words ", kLibrary = "library ";
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kLibrary)) library_ = line.substr(kLibrary.size());
    if (!line.starts_with(kBegin) && !line.starts_with(kAttention)) continue;
    const auto refuse = [&] {
      throw Error(
          fmt::format("a recorded algorithm cannot be read: '{}'\n  {} is damaged: without it algorithms are chosen again, "
                      "and the bits may change",
                      line, where),
          ErrorKind::corrupt);
    };
    const auto end = line.find(": "), at = line.rfind(kWords);
    if (line.starts_with(kAttention)) {
      const auto kernel = end == std::string::npos ? std::string() : line.substr(end + 2);
      if (kernel != "warps" && kernel != "warpgroups") refuse();
      attention_[line.substr(0, end)] = kernel;
      continue;
    }
    if (end == std::string::npos || at == std::string::npos || at < end) refuse();
    Words words{};
    const char* from = line.data() + at + kWords.size();
    const char* const last = line.data() + line.size();
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (i != 0 && (from == last || *from++ != ' ')) refuse();
      const auto [next, error] = std::from_chars(from, last, words[i], 16);
      if (error != std::errc{} || next - from != 16) refuse();
      from = next;
    }
    if (from != last) refuse();
    words_[line.substr(kBegin.size(), end - kBegin.size())] = words;
  }
}

std::optional<RecordedAlgorithms::Words> RecordedAlgorithms::of(const ProductKey& key) const {
  const auto at = words_.find(to_string(key));
  return at == words_.end() ? std::nullopt : std::optional(at->second);
}

std::optional<RecordedAlgorithms::Words> KnownAlgorithms::of(const ProductKey& key, std::string_view library) const {
  if (auto words = run_.of(key)) return words;
  return machine_.library() == library ? machine_.of(key) : std::nullopt;
}

std::string RecordedAlgorithms::attention(const AttentionSubject& subject) const {
  const auto at = attention_.find(to_string(subject));
  return at == attention_.end() ? std::string() : at->second;
}

KnownAlgorithms::Attention KnownAlgorithms::attention(const AttentionSubject& subject,
                                                      const std::function<std::string()>& library) const {
  if (auto kernel = run_.attention(subject); !kernel.empty()) return {std::move(kernel), true};
  if (run_.size() != 0) return {"warps", true};
  auto kernel = machine_.attention(subject);
  return !kernel.empty() && machine_.library() == library() ? Attention{std::move(kernel), false} : Attention{};
}

}  // namespace terrace::cuda
