#include <terrace/core/cuda/recorded_algorithms.h>

#include <charconv>
#include <sstream>

#include <fmt/format.h>

#include <terrace/core/error.h>

namespace terrace::cuda {

RecordedAlgorithms::RecordedAlgorithms(std::string_view text, std::string_view where) {
  constexpr std::string_view kBegin = "matmul ", kWords = ", words ", kLibrary = "library ";
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kLibrary)) library_ = line.substr(kLibrary.size());
    if (!line.starts_with(kBegin)) continue;
    const auto refuse = [&] {
      throw Error(
          fmt::format("a recorded algorithm cannot be read: '{}'\n  {} is damaged: without it algorithms are chosen anew, "
                      "and the bits may be others",
                      line, where),
          Exit::corrupt);
    };
    const auto end = line.find(": "), at = line.rfind(kWords);
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

}  // namespace terrace::cuda
