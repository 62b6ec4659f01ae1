#include <terrace/examples/lm/tokenizer/tokenizer_file.h>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/printable.h>

namespace terrace::lm {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kDeepest = 64;
constexpr std::size_t kMostKeys = 4096;  // of objects other than the vocabulary: finding a key is linear

[[noreturn]] void refuse(const std::string& why) { throw Error(why, ErrorKind::corrupt); }

// Builds the JSON tree, except for model.vocab and model.merges.
class Reader : public nlohmann::json_sax<Json> {
 public:
  explicit Reader(TokenizerFile& file) : file_(file) {}

  bool null() override { return value(nullptr); }
  bool boolean(bool v) override { return value(v); }
  bool number_integer(std::int64_t v) override { return value(v); }
  bool number_unsigned(std::uint64_t v) override {
    if (place_ != Place::vocabulary) return value(v);
    if (v > kMostTokenId) refuse(fmt::format("token \"{}\" has the id {}, which is too large", base::printable(key_), v));
    file_.vocabulary.emplace_back(std::move(key_), static_cast<TokenId>(v));
    return true;
  }
  bool number_float(double v, const std::string&) override { return value(v); }
  bool string(std::string& v) override {
    if (place_ == Place::merges) return merge(v);
    if (place_ == Place::pair) return part(v);
    return value(std::move(v));
  }
  bool binary(Json::binary_t&) override { return value(nullptr); }
  bool key(std::string& v) override {
    key_ = std::move(v);
    if (place_ == Place::tree) {
      if (open_.back()->contains(key_)) refuse(fmt::format("it has the key \"{}\" twice", base::printable(key_)));
      if (open_.back()->size() >= kMostKeys) refuse(fmt::format("it has an object of more than {} keys", kMostKeys));
    }
    return true;
  }
  bool start_object(std::size_t) override {
    if (place_ == Place::tree && in_model() && key_ == "vocab") {
      add(nullptr);
      place_ = Place::vocabulary;
      return true;
    }
    return open(Json::object());
  }
  bool start_array(std::size_t) override {
    if (place_ == Place::tree && in_model() && key_ == "merges") {
      add(nullptr);
      place_ = Place::merges;
      return true;
    }
    if (place_ == Place::merges) {
      place_ = Place::pair;
      pair_.clear();
      return true;
    }
    return open(Json::array());
  }
  bool end_object() override {
    if (place_ == Place::vocabulary) {
      place_ = Place::tree;
    } else {
      open_.pop_back();
    }
    return true;
  }
  bool end_array() override {
    if (place_ == Place::pair) {
      if (pair_.size() != 2) refuse(fmt::format("merge {} has {} parts", file_.merges.size(), pair_.size()));
      file_.merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
      place_ = Place::merges;
    } else if (place_ == Place::merges) {
      place_ = Place::tree;
    } else {
      open_.pop_back();
    }
    return true;
  }
  bool parse_error(std::size_t byte, const std::string&, const nlohmann::json::exception&) override {
    refuse(fmt::format("it is not JSON from its byte {} on", byte));
  }

 private:
  enum class Place { tree, vocabulary, merges, pair };

  [[nodiscard]] bool in_model() const { return open_.size() == 2 && model_ == open_.back(); }
  bool merge(const std::string& text) {
    const auto space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
      refuse(fmt::format("merge {} is \"{}\", and not two tokens with a space between them", file_.merges.size(),
                         base::printable(text)));
    file_.merges_in_pairs = false;
    file_.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    return true;
  }
  bool part(std::string& text) {
    if (pair_.size() == 2) refuse(fmt::format("merge {} has more than two parts", file_.merges.size()));
    pair_.push_back(std::move(text));
    return true;
  }
  bool value(Json v) {
    if (place_ == Place::vocabulary) refuse(fmt::format("the id of token \"{}\" is no number", base::printable(key_)));
    if (place_ != Place::tree) refuse(fmt::format("merge {} is no text", file_.merges.size()));
    add(std::move(v));
    return true;
  }
  Json* add(Json v) {
    if (open_.empty()) return &(file_.rest = std::move(v));
    auto& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(v));
      return &parent.back();
    }
    return &(parent[key_] = std::move(v));
  }
  bool open(Json v) {
    if (place_ != Place::tree) return value(nullptr);
    if (open_.size() == kDeepest) refuse(fmt::format("it has more than {} levels", kDeepest));
    const bool is_model = open_.size() == 1 && key_ == "model";
    open_.push_back(add(std::move(v)));
    if (is_model) model_ = open_.back();
    return true;
  }

  TokenizerFile& file_;
  std::vector<Json*> open_;  // a parent does not grow while its child is open, so that pointers stay valid
  const Json* model_ = nullptr;
  std::string key_;
  Place place_ = Place::tree;
  std::vector<std::string> pair_;
};

std::string quoted(const std::string& text) { return Json(text).dump(); }

// Writes one line per entry, as the library does.
template <class Entries, class Write>
void append_lines(std::string& out, const Entries& entries, const Write& write) {
  bool first = true;
  for (const auto& entry : entries) {
    out += first ? "\n      " : ",\n      ";
    out += write(entry);
    first = false;
  }
  out += "\n    ";
}

}  // namespace

TokenizerFile TokenizerFile::parse(std::string_view text) {
  TokenizerFile file;
  Reader reader(file);
  try {
    Json::sax_parse(text, &reader);
  } catch (const Json::exception&) {
    refuse("it has a number that is too large");
  }
  if (!file.rest.is_object() || !file.rest.contains("model") || !file.rest["model"].is_object())
    refuse("it is no tokenizer.json: it has no \"model\"");
  return file;
}

std::string TokenizerFile::text() const {
  std::string out = "{";
  const auto indented = [](const Json& json, std::size_t spaces) {
    std::string text;
    for (const char c : json.dump(2)) {
      text += c;
      if (c == '\n') text.append(spaces, ' ');
    }
    return text;
  };
  const char* comma = "";
  for (const auto& [key, part] : rest.items()) {
    out += fmt::format("{}\n  {}: ", comma, quoted(key));
    comma = ",";
    if (key != "model") {
      out += indented(part, 2);
      continue;
    }
    out += "{";
    const char* inner_comma = "";
    for (const auto& [name, value] : part.items()) {
      out += fmt::format("{}\n    {}: ", inner_comma, quoted(name));
      inner_comma = ",";
      if (name == "vocab") {
        out += "{";
        append_lines(out, vocabulary,
                     [](const auto& entry) { return fmt::format("{}: {}", quoted(entry.first), entry.second); });
        out += "}";
      } else if (name == "merges") {
        out += "[";
        append_lines(out, merges, [&](const auto& entry) {
          return merges_in_pairs ? fmt::format("[{}, {}]", quoted(entry.first), quoted(entry.second))
                                 : quoted(entry.first + " " + entry.second);
        });
        out += "]";
      } else {
        out += indented(value, 4);
      }
    }
    out += "\n  }";
  }
  return out + "\n}\n";
}

}  // namespace terrace::lm
