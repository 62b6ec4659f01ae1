// Damages JSON as a tree: replaces a value, repeats or removes a key, makes a list too long or a number too large. A fuzzer
// that only changes bytes would mostly produce texts that are not JSON.
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

// A node in the text's own spelling: keys may repeat, numbers may be of any size, strings may have any bytes.
struct JsonNode {
  enum class Kind : std::uint8_t { scalar, list, object };
  Kind kind = Kind::scalar;
  std::string text;               // of a scalar; a string has its quotes
  std::vector<std::string> keys;  // of an object, with quotes
  std::vector<JsonNode> items;    // of a list or an object
};

std::optional<JsonNode> parse_json_node(std::string_view text);  // nothing: not JSON, or more than 200 levels deep
std::string text_of(const JsonNode& node);

using Random = std::minstd_rand;

void damage(JsonNode& tree, Random& random);  // in one place
// Puts a part of `other` somewhere into the tree.
void graft(JsonNode& tree, JsonNode other, Random& random);

}  // namespace terrace::test
