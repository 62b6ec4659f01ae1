#include <terrace/tests/fuzz/json_mutator.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace terrace::test {
namespace {

constexpr std::size_t kDeepest = 200;
constexpr std::size_t kMostNodes = 1 << 16;  // limit for a list or an object that grows

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  std::optional<JsonNode> all() {
    auto node = value(0);
    skip();
    return node && at_ == text_.size() ? std::move(node) : std::nullopt;
  }

 private:
  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }
  bool take(char c) {
    skip();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::string scalar() {
    const auto begin = at_;
    if (text_[at_] == '"') {
      for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_)
        if (text_[at_] == '\\') ++at_;
      at_ = std::min(at_ + 1, text_.size());
    } else {
      at_ = std::min(text_.find_first_of(",]}: \t\r\n\"", at_), text_.size());
    }
    return std::string(text_.substr(begin, at_ - begin));
  }
  std::optional<JsonNode> value(std::size_t depth) {
    skip();
    if (at_ == text_.size() || depth > kDeepest) return {};
    JsonNode node;
    const bool object = text_[at_] == '{';
    if (!object && text_[at_] != '[') {
      node.text = scalar();
      return node.text.empty() ? std::nullopt : std::optional(std::move(node));
    }
    const char close = object ? '}' : ']';
    node.kind = object ? JsonNode::Kind::object : JsonNode::Kind::list;
    ++at_;
    if (take(close)) return node;
    do {
      if (object) {
        skip();
        if (at_ == text_.size() || text_[at_] != '"') return {};
        node.keys.push_back(scalar());
        if (!take(':')) return {};
      }
      auto item = value(depth + 1);
      if (!item) return {};
      node.items.push_back(*std::move(item));
    } while (take(','));
    return take(close) ? std::optional(std::move(node)) : std::nullopt;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

void append(std::string& out, const JsonNode& node) {
  if (node.kind == JsonNode::Kind::scalar) {
    out += node.text;
    return;
  }
  const bool object = node.kind == JsonNode::Kind::object;
  out += object ? '{' : '[';
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    if (i > 0) out += ',';
    if (object) out += node.keys[i] + ":";
    append(out, node.items[i]);
  }
  out += object ? '}' : ']';
}

std::size_t below(std::size_t count, Random& random) { return count == 0 ? 0 : random() % count; }

constexpr std::array kStrange{"0",
                              "1",
                              "-1",
                              "2",
                              "255",
                              "256",
                              "65535",
                              "65536",
                              "2147483647",
                              "2147483648",
                              "4294967295",
                              "4294967296",
                              "1099511627776",
                              "9007199254740993",
                              "9223372036854775807",
                              "9223372036854775808",
                              "18446744073709551615",
                              "18446744073709551616",
                              "-9223372036854775808",
                              "0.5",
                              "-0.0",
                              "1e-9",
                              "1e18",
                              "1e308",
                              "1e400",
                              "NaN",
                              "null",
                              "true",
                              "false",
                              "\"\"",
                              "[]",
                              "{}",
                              "[[]]",
                              "[{}]",
                              "\"..\"",
                              "\"../x\"",
                              "\"a/b\"",
                              "\"/etc/passwd\"",
                              "\"a\\u0000b\"",
                              "\"\\ud800\"",
                              "\"\xff\"",
                              "\" \"",
                              "\"a b\"",
                              "\"\\u2581\"",
                              "\"<0x41>\"",
                              "\"default\"",
                              "\"auto\""};

JsonNode strange(Random& random) {
  const std::string text = kStrange[below(kStrange.size(), random)];
  if (auto node = parse_json_node(text)) return *node;
  return {.text = text, .keys = {}, .items = {}};
}

// Any node, each with the same probability.
JsonNode& some_node(JsonNode& tree, Random& random) {
  std::vector<JsonNode*> all{&tree};
  for (std::size_t i = 0; i < all.size(); ++i)
    for (auto& item : all[i]->items) all.push_back(&item);
  return *all[below(all.size(), random)];
}

// A non-empty list or object; the tree itself if there is none.
JsonNode& some_parent(JsonNode& tree, Random& random) {
  std::vector<JsonNode*> all{&tree}, parents;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!all[i]->items.empty()) parents.push_back(all[i]);
    for (auto& item : all[i]->items) all.push_back(&item);
  }
  return parents.empty() ? tree : *parents[below(parents.size(), random)];
}

void wrap(JsonNode& node, std::size_t levels, bool object) {
  for (std::size_t i = 0; i < levels; ++i) {
    JsonNode outer{.kind = object ? JsonNode::Kind::object : JsonNode::Kind::list, .text = {}, .keys = {}, .items = {}};
    if (object) outer.keys.emplace_back("\"a\"");
    outer.items.push_back(std::move(node));
    node = std::move(outer);
  }
}

void tweak_number(std::string& text, Random& random) {
  const bool negative = text.starts_with('-');
  const auto digits = text.substr(negative ? 1 : 0);
  if (digits.empty() || digits.size() > 18 || !std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; })) return;
  const auto value = std::stoll(text);
  switch (below(5, random)) {
    case 0: text = std::to_string(value + 1); break;
    case 1: text = std::to_string(value - 1); break;
    case 2: text += "0"; break;
    case 3: text = std::to_string(value / 2); break;
    default: text = "-" + text; break;
  }
}

void tweak_string(std::string& text, Random& random) {
  const auto at = 1 + below(text.size() - 1, random);
  switch (below(3, random)) {
    case 0: text.insert(at, 1, static_cast<char>(' ' + below(95, random))); break;
    case 1:
      if (at + 1 < text.size()) text.erase(at, 1);
      break;
    default: text.insert(at, text.substr(1, text.size() - 2)); break;
  }
}

void insert(JsonNode& parent, std::size_t at, const std::string& key, JsonNode item) {
  const auto place = static_cast<std::ptrdiff_t>(at);
  if (parent.kind == JsonNode::Kind::object) parent.keys.insert(parent.keys.begin() + place, key);
  parent.items.insert(parent.items.begin() + place, std::move(item));
}

}  // namespace

std::optional<JsonNode> parse_json_node(std::string_view text) { return Parser(text).all(); }

std::string text_of(const JsonNode& node) {
  std::string out;
  append(out, node);
  return out;
}

void damage(JsonNode& tree, Random& random) {
  auto& node = some_node(tree, random);
  auto& parent = some_parent(tree, random);
  const auto count = parent.items.size();
  const auto at = below(count, random), other = below(count, random);
  const bool object = parent.kind == JsonNode::Kind::object;
  const auto key = [&](std::size_t i) { return object ? parent.keys[i] : std::string(); };
  switch (below(10, random)) {
    case 0: node = strange(random); break;
    case 1: node = JsonNode(some_node(tree, random)); break;
    case 2:
      if (node.kind == JsonNode::Kind::scalar && node.text.size() > 1 && node.text.front() == '"')
        tweak_string(node.text, random);
      else
        tweak_number(node.text, random);
      break;
    case 3: wrap(node, std::array<std::size_t, 4>{1, 2, 63, 70}[below(4, random)], below(2, random) == 0); break;
    case 4:  // remove it
      if (count == 0) break;
      parent.items.erase(parent.items.begin() + static_cast<std::ptrdiff_t>(at));
      if (object) parent.keys.erase(parent.keys.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    case 5:  // repeat it
      if (count > 0) insert(parent, other, key(at), JsonNode(parent.items[at]));
      break;
    case 6:
      if (count > 0) std::swap(parent.items[at], parent.items[other]);
      break;
    case 7:  // move a key's name to another value
      if (count > 0 && object) {
        auto& elsewhere = some_parent(tree, random);
        parent.keys[at] = elsewhere.kind == JsonNode::Kind::object ? elsewhere.keys[below(elsewhere.keys.size(), random)]
                                                                   : parent.keys[other];
      }
      break;
    case 8:
      if (count > 0) insert(parent, at, key(at), strange(random));
      break;
    default:  // make it far too long
      for (auto left = count == 0 || count > kMostNodes ? 0 : std::size_t{1} << below(10, random); left > 0; --left)
        insert(parent, parent.items.size(), key(at), JsonNode(parent.items[at]));
      break;
  }
}

void graft(JsonNode& tree, JsonNode other, Random& random) {
  auto& from = some_parent(other, random);
  auto& to = some_parent(tree, random);
  if (from.items.empty() || to.items.empty()) return;
  const auto taken = below(from.items.size(), random);
  const auto key = from.kind == JsonNode::Kind::object ? from.keys[taken] : std::string("\"a\"");
  insert(to, below(to.items.size(), random), key, std::move(from.items[taken]));
}

}  // namespace terrace::test
