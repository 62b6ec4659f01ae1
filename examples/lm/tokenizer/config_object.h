// JSON objects in the files beside a tokenizer, and the tokens that they name.
//
// Internal to the tokenizer. Threads: any.
// Errors:  Error that names the file: Exit::usage for one that cannot be read, Exit::corrupt for one that is no JSON object, or
//          whose fields have another form.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <terrace/examples/lm/tokenizer/added_tokens.h>

namespace terrace::lm {

std::optional<std::string> text_beside(const std::filesystem::path& file);  // nothing: it is not there
nlohmann::json object_beside(const std::filesystem::path& file);            // empty: it is not there
// A token is a text, or an object with its content. Empty: it is neither.
std::string token_of(const nlohmann::json& value);

// One of the files.
class ConfigObject {
 public:
  ConfigObject(const std::filesystem::path& folder, const char* name)
      : ConfigObject(folder / name, object_beside(folder / name)) {}
  ConfigObject(std::filesystem::path file, nlohmann::json object) : file_(std::move(file)), object_(std::move(object)) {}

  [[nodiscard]] const nlohmann::json& object() const { return object_; }
  [[nodiscard]] const nlohmann::json& value(const char* key) const;  // null: it is not there
  [[nodiscard]] std::optional<bool> flag(const char* key) const;     // nothing: it is not there, or null
  [[nodiscard]] TokenId id(const nlohmann::json& number) const;
  // A token with how it is found. Without a field for it, one that is special is looked for before normalisation.
  [[nodiscard]] AddedToken token(const nlohmann::json& value, bool special_if_absent) const;
  // "added_tokens_decoder", which has tokens by their ids.
  [[nodiscard]] std::vector<AddedToken> tokens_by_id() const;
  [[noreturn]] void refuse(const std::string& why) const;

 private:
  std::filesystem::path file_;
  nlohmann::json object_;
};

}  // namespace terrace::lm
