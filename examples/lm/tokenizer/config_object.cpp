#include <terrace/examples/lm/tokenizer/config_object.h>

#include <fmt/format.h>

#include <terrace/core/error.h>
#include <terrace/core/fetched_file.h>
#include <terrace/core/json_text.h>
#include <terrace/core/text_file.h>

namespace terrace::lm {

namespace fs = std::filesystem;

std::optional<std::string> text_beside(const fs::path& file) {
  demand_fetched(file);
  std::error_code error;
  if (!fs::exists(file, error)) return {};
  try {
    return read_text_file(file);
  } catch (const Error& why) {
    throw Error(fmt::format("{} cannot be read: {}\n  make it readable, or remove it", file.string(), why.what()), Exit::usage);
  }
}

nlohmann::json object_beside(const fs::path& file) {
  const auto text = text_beside(file);
  if (!text) return nlohmann::json::object();
  try {
    auto object = parse_json(*text);
    if (!object.is_object()) throw Error("it is no object");
    return object;
  } catch (const Error& why) {
    throw Error(fmt::format("{} cannot be used: {}\n  correct it, or remove it", file.string(), why.what()), Exit::corrupt);
  }
}

std::string token_of(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string())
    return value["content"].get<std::string>();
  return {};
}

}  // namespace terrace::lm
