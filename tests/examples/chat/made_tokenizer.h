// A tokenizer whose ids are bytes, and special tokens above them.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <terrace/examples/lm/tokenizer/tokenizer.h>
#include <terrace/examples/lm/tokenizer/words/byte_letters.h>

namespace terrace::lm {

inline Tokenizer tokenizer_of_bytes(const std::vector<std::string>& special) {
  using Json = nlohmann::ordered_json;
  Json model{{"type", "BPE"}, {"vocab", Json::object()}, {"merges", Json::array()}};
  for (unsigned byte = 0; byte < 256; ++byte) model["vocab"][letters_of_bytes(std::string(1, static_cast<char>(byte)))] = byte;
  auto added = Json::array();
  for (const auto& token : special)
    added.push_back({{"id", 256 + added.size()},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  const Json json{{"version", "1.0"},
                  {"added_tokens", added},
                  {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                  {"decoder", {{"type", "ByteLevel"}}},
                  {"model", model}};
  return Tokenizer(TokenizerFile::parse(json.dump()));
}

}  // namespace terrace::lm
