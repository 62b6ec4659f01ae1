#include <terrace/examples/lm/chat/exact_json.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/error.h>
#include <terrace/core/base/nesting.h>

namespace terrace::lm {
namespace {

using Json = nlohmann::ordered_json;

class Builder : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return value(nullptr); }
  bool boolean(bool v) override { return value(v); }
  bool number_integer(std::int64_t v) override { return value(v); }
  bool number_unsigned(std::uint64_t v) override { return value(v); }
  bool number_float(double v, const std::string& text) override {
    const bool whole = text.find_first_of(".eE") == std::string::npos;
    return value(whole ? Json::binary(std::vector<std::uint8_t>(text.begin(), text.end())) : Json(v));
  }
  bool string(std::string& v) override { return value(std::move(v)); }
  bool binary(Json::binary_t&) override { return false; }  // not possible in text
  bool key(std::string& v) override {
    key_ = std::move(v);
    return true;
  }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t byte, const std::string&, const nlohmann::json::exception& error) override {
    constexpr int kOutOfRange = 406;  // a number that does not fit into a double
    if (error.id == kOutOfRange) throw Error("it has a number that is too large");
    throw Error(fmt::format("it is not JSON from its byte {} on", byte));
  }
  Json take() { return std::move(root_); }

 private:
  bool value(Json v) {
    add(std::move(v));
    return true;
  }
  Json* add(Json v) {
    if (open_.empty()) return &(root_ = std::move(v));
    auto& parent = *open_.back();
    if (parent.is_object()) return &(parent[key_] = std::move(v));
    parent.push_back(std::move(v));
    return &parent.back();
  }
  bool open(Json v) {
    open_.push_back(add(std::move(v)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  Json root_;
  std::vector<Json*> open_;  // a parent does not grow while its child is open, so the pointers stay valid
  std::string key_;
};

}  // namespace

Json parse_exact_json(std::string_view text) {
  base::demand_shallow_json(text);
  Builder builder;
  Json::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace terrace::lm
