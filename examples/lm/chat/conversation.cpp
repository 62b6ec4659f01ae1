#include <terrace/examples/lm/chat/conversation.h>

#include <algorithm>

#include <fmt/format.h>

#include <terrace/core/error.h>
#include <terrace/core/json_text.h>
#include <terrace/core/text_file.h>

namespace terrace::lm {
namespace {

using Json = nlohmann::json;

[[noreturn]] void refuse(const std::string& why, const std::string& mend) {
  throw Error(fmt::format("{}\n  {}", why, mend), Exit::usage);
}

const std::string& text_of(const Json& object, const char* key, const std::string& of) {
  if (!object.contains(key)) refuse(fmt::format("{} has no \"{}\"", of, key), "add it, or remove the line");
  if (!object[key].is_string())
    refuse(fmt::format("\"{}\" of {} is no text", key, of),
           "write a text, or remove the line; calls of tools are not supported");
  return object[key].get_ref<const std::string&>();
}

// A text, or a list of parts of which each is one.
std::string content_of(const Json& message, const std::string& of) {
  if (!message.contains("content") || !message["content"].is_array()) return text_of(message, "content", of);
  std::string all;
  for (const auto& part : message["content"]) {
    if (!part.is_object() || part.value("type", Json()) != "text")
      refuse(fmt::format("\"content\" of {} has a part that is no text", of),
             "remove the line; pictures and calls of tools are not supported");
    all += text_of(part, "text", of);
  }
  return all;
}

Conversation of_messages(const Json& list) {
  constexpr const char* kMend = "write \"messages\" as a list of objects with \"role\" and \"content\"";
  if (!list.is_array() || list.empty()) refuse("\"messages\" is no list with messages", kMend);
  Conversation out;
  for (const auto& message : list) {
    const auto of = fmt::format("message {}", out.messages.size() + 1);
    if (!message.is_object()) refuse(fmt::format("{} is no object", of), kMend);
    auto role = text_of(message, "role", of);
    out.messages.push_back({std::move(role), content_of(message, of)});
  }
  if (std::ranges::none_of(out.messages, [](const Message& m) { return m.role == kAnswering; }))
    refuse("no message has the role \"assistant\", so there is nothing to learn", "add an answer, or remove the line");
  return out;
}

}  // namespace

Conversation parse_conversation(std::string_view line) {
  if (!is_utf8(line)) refuse("it is not UTF-8", "save the file as UTF-8");
  Json object;
  try {
    object = parse_json(line);
  } catch (const Error& error) {
    refuse(error.what(), "each line must be one JSON object: correct it, or remove it");
  }
  if (!object.is_object()) refuse("it is no JSON object", "each line must be one JSON object: correct it, or remove it");
  const std::string it = "the object";
  if (object.contains("messages")) return of_messages(object["messages"]);
  if (object.contains("prompt")) {
    Conversation out{.messages = {}, .prompt = text_of(object, "prompt", it), .completion = text_of(object, "completion", it)};
    if (out.completion.empty())
      refuse("\"completion\" is empty, so there is nothing to learn", "add a text, or remove the line");
    return out;
  }
  if (object.contains("instruction")) {
    auto question = text_of(object, "instruction", it);
    if (object.contains("input") && !object["input"].is_null())
      if (const auto& input = text_of(object, "input", it); !input.empty()) question += "\n\n" + input;
    return {.messages = {{"user", std::move(question)}, {std::string(kAnswering), text_of(object, "output", it)}},
            .prompt = {},
            .completion = {}};
  }
  refuse("it has none of the keys \"messages\", \"prompt\" and \"instruction\"",
         "give \"messages\", or \"prompt\" and \"completion\", or \"instruction\" and \"output\"");
}

}  // namespace terrace::lm
