#include <terrace/core/cuda/cudnn/attention_record.h>

#include <algorithm>
#include <sstream>

#include <fmt/format.h>

#include <terrace/core/base/error.h>

namespace terrace::cuda::cudnn {
namespace {

// Parses the text after the name, up to the remark.
std::optional<RecordedAttention> parse(std::string_view text) {
  constexpr std::string_view kOurs = "by our kernels", kTheirs = "by cuDNN ";
  text = text.substr(0, text.find(';'));
  if (text == kOurs) return RecordedAttention{};
  const auto comma = text.find(", ");
  if (!text.starts_with(kTheirs) || comma == std::string_view::npos) return std::nullopt;
  RecordedAttention recorded{.version = std::string(text.substr(kTheirs.size(), comma - kTheirs.size())),
                             .choice = parse_choice(text.substr(comma + 2))};
  return recorded.choice && !recorded.version.empty() ? std::optional(recorded) : std::nullopt;
}

}  // namespace

std::string name_of(const AttentionShape& s, bool gradient) {
  return fmt::format("[batch {}, seq {}, {} heads, {} kv heads, dim {}] {}", s.batch, s.seq, s.heads, s.kv_heads, s.head_dim,
                     gradient ? "gradient" : "forward");
}

AttentionRecord::AttentionRecord(std::string_view text, std::string_view where) {
  constexpr std::string_view kBegin = "attention ";
  std::istringstream in{std::string(text)};
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("attention [")) continue;  // other lines name the kernels of recorded_algorithms.h
    const auto end = line.find(": ");
    const auto recorded = end == std::string::npos ? std::nullopt : parse(std::string_view(line).substr(end + 2));
    if (!recorded) {
      throw Error(
          fmt::format("a recorded choice for attention cannot be read: '{}'\n  {} is damaged: without it the choice is made "
                      "again, and the bits may change",
                      line, where),
          ErrorKind::corrupt);
    }
    lines_[line.substr(kBegin.size(), end - kBegin.size())] = *recorded;
  }
}

const RecordedAttention* AttentionRecord::of(const std::string& name) const {
  const auto at = lines_.find(name);
  return at == lines_.end() ? nullptr : &at->second;
}

bool AttentionRecord::names_cudnn() const {
  return std::ranges::any_of(lines_, [](const auto& line) { return line.second.choice.has_value(); });
}

}  // namespace terrace::cuda::cudnn
