#include <terrace/examples/lm/chat/conversation.h>

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include <terrace/core/error.h>
#include <terrace/core/printable.h>
#include <terrace/core/text_file.h>
#include <terrace/examples/lm/chat/exact_json.h>

namespace terrace::lm {
namespace {

using Json = nlohmann::ordered_json;

std::string with_mend(const std::string& why, const std::string& mend) { return fmt::format("{}\n  {}", why, mend); }
[[noreturn]] void refuse(const std::string& why, const std::string& mend) { throw Error(with_mend(why, mend), Exit::usage); }

const std::string& text_of(const Json& object, const char* key, const std::string& of) {
  if (!object.contains(key)) refuse(fmt::format("{} has no \"{}\"", of, key), "add it, or remove the line");
  if (!object[key].is_string()) refuse(fmt::format("\"{}\" of {} is no text", key, of), "write a text, or remove the line");
  return object[key].get_ref<const std::string&>();
}

constexpr const char* kPlainMend = "write a text, remove the line, or give the model's own chat template, which may know more";

// A text, or a list of parts of which each is one. Anything else is for chat templates.
void take_content(const Json& message, const std::string& of, Message& out) {
  const auto no_text = [&](const std::string& what) { out.not_plain = with_mend(what, kPlainMend); };
  if (message.contains("tool_calls") && !message["tool_calls"].is_null()) no_text(fmt::format("{} calls tools", of));
  if (!message.contains("content")) return no_text(fmt::format("{} has no \"content\"", of));
  const auto& content = message["content"];
  if (content.is_string()) out.content = content.get<std::string>();
  if (content.is_string()) return;
  if (!content.is_array()) return no_text(fmt::format("\"content\" of {} is no text", of));
  for (const auto& part : content) {
    if (!part.is_object() || part.value("type", Json()) != "text" || !part.value("text", Json()).is_string())
      return no_text(fmt::format("\"content\" of {} has a part that is no text", of));
    out.content += part["text"].get<std::string>();
  }
}

// What programs call the mark of what is learned. The last one says the contrary.
constexpr std::array<const char*, 9> kMarks{"weight", "train",     "training",       "trainable", "learn",
                                            "loss",   "loss_mask", "step_loss_mask", "masked"};

// Whether no mark of an object says that it must not be learned.
bool may_be_learned(const Json& object, const std::string& of) {
  bool learned = true;
  for (const auto* const mark : kMarks) {
    const auto found = object.find(mark);
    if (found == object.end() || found->is_null()) continue;
    if (!found->is_boolean() && !(found->is_number() && (*found == 0 || *found == 1)))
      refuse(fmt::format("\"{}\" of {} is {}, and an answer is learned or it is not", mark, of, printable(found->dump(), 40)),
             "write 1 or 0, true or false, or leave it out");
    const bool yes = found->is_boolean() ? found->get<bool>() : *found == 1;
    learned = learned && yes != (mark == kMarks.back());
  }
  return learned;
}

Conversation of_messages(const Json& list) {
  constexpr const char* kMend = "write \"messages\" as a list of objects with \"role\" and \"content\"";
  if (!list.is_array() || list.empty()) refuse("\"messages\" is no list with messages", kMend);
  Conversation out;
  for (const auto& message : list) {
    const auto of = fmt::format("message {}", out.messages.size() + 1);
    if (!message.is_object()) refuse(fmt::format("{} is no object", of), kMend);
    auto& added = out.messages.emplace_back();
    added.role = text_of(message, "role", of);
    added.given = message;
    added.learned = added.role == kAnswering && may_be_learned(message, of);
    take_content(message, of, added);
  }
  if (std::ranges::none_of(out.messages, [](const Message& m) { return m.role == kAnswering; }))
    refuse("no message has the role \"assistant\", so there is nothing to learn", "add an answer, or remove the line");
  if (std::ranges::none_of(out.messages, &Message::learned))
    refuse("all answers are marked as not to be learned, so there is nothing to learn", "remove the line");
  return out;
}

void add_message(Conversation& to, std::string_view role, const std::string& content) {
  to.messages.push_back({.role = std::string(role), .content = content, .learned = role == kAnswering});
}

// Alpaca: the system's text, earlier questions with their answers, the instruction with its input, and the answer.
Conversation of_instruction(const Json& object) {
  const std::string it = "the object";
  const auto given = [&](const char* key) { return object.contains(key) && !object[key].is_null(); };
  Conversation out;
  if (given("system"))
    if (const auto& system = text_of(object, "system", it); !system.empty()) add_message(out, "system", system);
  if (given("history")) {
    const auto is_pair = [](const Json& turn) {
      return turn.is_array() && turn.size() == 2 && turn[0].is_string() && turn[1].is_string();
    };
    const auto& history = object["history"];
    if (!history.is_array() || !std::ranges::all_of(history, is_pair))
      refuse("\"history\" is no list of pairs of a question and its answer",
             "write it as [[\"question\", \"answer\"], …], or remove it");
    for (const auto& turn : history) {
      add_message(out, "user", turn[0].get<std::string>());
      add_message(out, kAnswering, turn[1].get<std::string>());
    }
  }
  auto question = text_of(object, "instruction", it);
  if (given("input"))
    if (const auto& input = text_of(object, "input", it); !input.empty()) question += "\n\n" + input;
  add_message(out, "user", question);
  add_message(out, kAnswering, text_of(object, "output", it));
  return out;
}

}  // namespace

Conversation parse_conversation(std::string_view line) {
  if (!is_utf8(line)) refuse("it is not UTF-8", "save the file as UTF-8");
  Json object;
  try {
    object = parse_exact_json(line);
  } catch (const Error& error) {
    refuse(error.what(), "each line must be one JSON object: correct it, or remove it");
  }
  if (!object.is_object()) refuse("it is no JSON object", "each line must be one JSON object: correct it, or remove it");
  const std::string it = "the object";
  if (object.contains("messages")) {
    auto out = of_messages(object["messages"]);
    for (const auto& [key, to] :
         {std::pair{"tools", &out.tools}, {"documents", &out.documents}, {"chat_template_kwargs", &out.variables}})
      if (object.contains(key)) *to = object[key];
    if (!out.variables.is_null() && !out.variables.is_object())
      refuse("\"chat_template_kwargs\" is no object", "write an object, or remove it");
    return out;
  }
  if (object.contains("prompt")) {
    Conversation out;
    out.prompt = text_of(object, "prompt", it);
    out.completion = text_of(object, "completion", it);
    if (out.completion.empty())
      refuse("\"completion\" is empty, so there is nothing to learn", "add a text, or remove the line");
    return out;
  }
  if (object.contains("instruction")) return of_instruction(object);
  refuse("it has none of the keys \"messages\", \"prompt\" and \"instruction\"",
         "give \"messages\", or \"prompt\" and \"completion\", or \"instruction\" and \"output\"");
}

}  // namespace terrace::lm
