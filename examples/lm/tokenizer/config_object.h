// JSON objects in the files beside a tokenizer, and the tokens named there.
//
// Internal to the tokenizer. Threads: any.
// Errors:  Error with the file's name: ErrorKind::refused if it cannot be read, ErrorKind::corrupt if it is not a JSON object
//          or its fields have another form.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <terrace/examples/lm/tokenizer/added_tokens.h>

namespace terrace::lm {

std::optional<std::string> text_beside(const std::filesystem::path& file);  // nothing: no such file
nlohmann::json object_beside(const std::filesystem::path& file);            // empty: no such file
// A token is a string, or an object with its content. Returns an empty string for anything else.
std::string token_of(const nlohmann::json& value);

// The JSON object of one file.
class ConfigObject {
 public:
  ConfigObject(const std::filesystem::path& folder, const char* name)
      : ConfigObject(folder / name, object_beside(folder / name)) {}
  ConfigObject(std::filesystem::path file, nlohmann::json object) : file_(std::move(file)), object_(std::move(object)) {}

  [[nodiscard]] const nlohmann::json& object() const { return object_; }
  [[nodiscard]] const nlohmann::json& value(const char* key) const;  // null: no such key
  [[nodiscard]] std::optional<bool> flag(const char* key) const;     // nothing: no such key, or null
  [[nodiscard]] TokenId id(const nlohmann::json& number) const;
  // Reads a token with its matching flags. If the object does not say so, a special token is searched before normalisation.
  [[nodiscard]] AddedToken token(const nlohmann::json& value, bool special_if_absent) const;
  // Reads "added_tokens_decoder", which lists tokens by id.
  [[nodiscard]] std::vector<AddedToken> tokens_by_id() const;
  [[noreturn]] void refuse(const std::string& why) const;

 private:
  std::filesystem::path file_;
  nlohmann::json object_;
};

}  // namespace terrace::lm
