// Damages JSON as a tree: a value becomes another one, a key stands twice or is missing, a list is too long, a number one too
// large. A fuzzer that changes bytes alone would spend its time on texts that are not JSON.
//
// Threads: any; pure. The same text and seed give the same result.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::test {

// As the text spells it: keys may stand twice, numbers may be of any size, strings may hold any bytes.
struct JsonNode {
  enum class Kind : std::uint8_t { scalar, list, object };
  Kind kind = Kind::scalar;
  std::string text;               // of a scalar, with the quotes of a string
  std::vector<std::string> keys;  // of an object, with their quotes
  std::vector<JsonNode> items;    // of a list or an object
};

std::optional<JsonNode> parse_json_node(std::string_view text);  // nothing: it is not JSON, or deeper than 200 levels
std::string text_of(const JsonNode& node);

using Random = std::minstd_rand;

void damage(JsonNode& tree, Random& random);  // in one place
// A part of `other` takes a place in the tree.
void graft(JsonNode& tree, JsonNode other, Random& random);

}  // namespace terrace::test
