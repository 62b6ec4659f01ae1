#include <terrace/examples/lm/data/data_form.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/nesting.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/text_file.h>
#include <terrace/examples/lm/data/corpus.h>
#include <terrace/examples/lm/unpack/data_stream.h>

namespace terrace::lm {
namespace {

constexpr std::size_t kLooksAt = 64 * 1024;  // bytes; a multiple of four

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& what, const std::string& mend) {
  throw base::Refused(fmt::format("--data {}: {}\n  {}", file.string(), what, mend));
}

// `cut`: the last character may be incomplete.
bool is_text(std::string_view bytes, bool cut) {
  if (bytes.find('\0') != std::string_view::npos) return false;
  for (int off = 0; off < 4; ++off, bytes.remove_suffix(1)) {
    if (is_utf8(bytes)) return true;
    if (!cut || bytes.empty()) return false;
  }
  return false;
}

void demand_known(const std::filesystem::path& file, std::string_view bytes) {
  const auto name = file.string();
  struct Kind {
    std::string_view magic, called, unpack;
  };
  static constexpr std::array<Kind, 2> kPacked{{{"\xfd"
                                                 "7zXZ",
                                                 "packed by xz", "unxz -k"},
                                                {"BZh", "packed by bzip2", "bunzip2 -k"}}};
  for (const auto& kind : kPacked)
    if (bytes.starts_with(kind.magic))
      refuse(file, fmt::format("it is {}", kind.called), fmt::format("unpack it first: {} {}", kind.unpack, name));
  if (begins_packed(bytes)) refuse(file, "it is packed twice", "unpack it once, and give what comes out");
  if (bytes.starts_with("PAR1"))
    refuse(file, "it is a parquet file, which terrace does not read",
           fmt::format("write its rows as lines: python3 -c \"import pandas; pandas.read_parquet('{0}').to_json('{0}.jsonl', "
                       "orient='records', lines=True)\"",
                       name));
}

// True if the first line is a JSON object. Only its beginning is checked if the line is long and does not end within `text`.
bool begins_with_object(std::string_view text) try {
  const auto end = text.find('\n');
  const auto line = text.substr(0, end);
  if (end == std::string_view::npos && text.size() > kLooksAt / 2) return line.starts_with("{\"");
  base::demand_shallow_json(line);
  return nlohmann::json::parse(line, nullptr, false).is_object();
} catch (const Error&) {
  return false;
}

template <class Id>
std::uint64_t largest(std::string_view bytes) {
  std::uint64_t most = 0;
  for (std::size_t at = 0; at + sizeof(Id) <= bytes.size(); at += sizeof(Id)) {
    Id id = 0;
    std::memcpy(&id, bytes.data() + at, sizeof id);
    most = std::max<std::uint64_t>(most, id);
  }
  return most;
}

}  // namespace

DataForm form_of_data(const std::filesystem::path& path, std::int64_t vocabulary) {
  DataStream file(path);
  auto bytes = file.peek(kLooksAt + 1);
  const bool cut = bytes.size() > kLooksAt;
  bytes = bytes.substr(0, kLooksAt);
  // The unpacked size of a packed file is unknown.
  const auto size = cut && file.packed() ? 0 : cut ? file.file_bytes() : bytes.size();
  demand_known(path, bytes);
  auto ending = name_of_content(path).extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (is_text(bytes, cut)) {
    const auto begin = bytes.find_first_not_of(" \t\r\n");
    const auto content = begin == std::string_view::npos ? std::string_view() : bytes.substr(begin);
    const bool lines = ending == ".jsonl" || ending == ".ndjson" || ending == ".json";
    return lines || begins_with_object(content) ? DataForm::conversations : DataForm::bytes;
  }
  if (largest<std::uint32_t>(bytes.substr(0, 4)) == kLlmCMagic) return DataForm::llm_c;
  const auto ids = static_cast<std::uint64_t>(vocabulary);
  // Test four bytes first: two small ids of two bytes would be one large id of four.
  if (size % 4 == 0 && largest<std::uint32_t>(bytes) < ids) return DataForm::u32;
  if (size % 2 == 0 && largest<std::uint16_t>(bytes) < ids) return DataForm::u16;
  if (vocabulary == kByteVocabulary) return DataForm::bytes;
  refuse(
      path,
      fmt::format("it is no text, and no token ids of a model with --vocab {}: as ids of two bytes its first ones reach {}, as "
                  "ids of four {}",
                  vocabulary, largest<std::uint16_t>(bytes), largest<std::uint32_t>(bytes)),
      "give the model that the ids were made for, or text, conversations or ids that terrace tokenize makes");
}

}  // namespace terrace::lm
