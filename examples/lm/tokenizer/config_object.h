// JSON objects in the files beside a tokenizer.
//
// Internal to the tokenizer. Threads: any.
// Errors:  Error that names the file: Exit::usage for one that cannot be read, Exit::corrupt for one that is no JSON object.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

namespace terrace::lm {

std::optional<std::string> text_beside(const std::filesystem::path& file);  // nothing: it is not there
nlohmann::json object_beside(const std::filesystem::path& file);            // empty: it is not there
// A token is a text, or an object with its content. Empty: it is neither.
std::string token_of(const nlohmann::json& value);

}  // namespace terrace::lm
