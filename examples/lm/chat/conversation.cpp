#include <terrace/examples/lm/chat/conversation.h>

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/text_file.h>
#include <terrace/examples/lm/chat/exact_json.h>

namespace terrace::lm {
namespace {

using Json = nlohmann::ordered_json;

std::string with_mend(const std::string& why, const std::string& mend) { return fmt::format("{}\n  {}", why, mend); }
[[noreturn]] void refuse(const std::string& why, const std::string& mend) { throw base::Refused(with_mend(why, mend)); }

const std::string& text_of(const Json& object, const char* key, const std::string& of) {
  if (!object.contains(key)) refuse(fmt::format("{} has no \"{}\"", of, key), "add it, or remove the line");
  if (!object[key].is_string()) refuse(fmt::format("\"{}\" of {} is no text", key, of), "write a text, or remove the line");
  return object[key].get_ref<const std::string&>();
}

constexpr const char* kPlainMend = "write a text, remove the line, or give the model's own chat template, which may know more";

// Accepts a string, or a list of parts that has exactly one text. Anything else needs a chat template.
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

// Keys by which programs mark whether an answer is learned. The last one has the opposite meaning.
constexpr std::array<const char*, 9> kMarks{"weight", "train",     "training",       "trainable", "learn",
                                            "loss",   "loss_mask", "step_loss_mask", "masked"};

// True unless a mark of the object says that it must not be learned.
bool may_be_learned(const Json& object, const std::string& of) {
  bool learned = true;
  for (const auto* const mark : kMarks) {
    const auto found = object.find(mark);
    if (found == object.end() || found->is_null()) continue;
    if (!found->is_boolean() && !(found->is_number() && (*found == 0 || *found == 1)))
      refuse(fmt::format("\"{}\" of {} is {}, and an answer is learned or it is not", mark, of,
                         base::printable(found->dump(), 40)),
             "write 1 or 0, true or false, or leave it out");
    const bool yes = found->is_boolean() ? found->get<bool>() : *found == 1;
    learned = learned && yes != (mark == kMarks.back());
  }
  return learned;
}

void add_messages(Conversation& out, const char* key, const Json& list, bool learned) {
  const auto mend = fmt::format("write \"{}\" as a list of objects with \"role\" and \"content\"", key);
  if (!list.is_array() || list.empty()) refuse(fmt::format("\"{}\" is no list with messages", key), mend);
  for (const auto& message : list) {
    const auto of = fmt::format("message {}", out.messages.size() + 1);
    if (!message.is_object()) refuse(fmt::format("{} is no object", of), mend);
    auto& added = out.messages.emplace_back();
    added.role = text_of(message, "role", of);
    added.given = message;
    added.learned = learned && added.role == kAnswering && may_be_learned(message, of);
    take_content(message, of, added);
  }
}

void demand_answers(const Conversation& out) {
  if (std::ranges::none_of(out.messages, [](const Message& m) { return m.role == kAnswering; }))
    refuse("no message has the role \"assistant\", so there is nothing to learn", "add an answer, or remove the line");
  if (std::ranges::none_of(out.messages, &Message::learned))
    refuse("all answers are marked as not to be learned, so there is nothing to learn", "remove the line");
}

Conversation of_messages(const Json& object) {
  Conversation out;
  if (object.contains("messages")) {
    add_messages(out, "messages", object["messages"], true);
  } else {  // TRL's format
    add_messages(out, "prompt", object["prompt"], false);
    if (!object.contains("completion")) refuse("the object has no \"completion\"", "add it, or remove the line");
    add_messages(out, "completion", object["completion"], true);
  }
  demand_answers(out);
  for (const auto& [key, to] :
       {std::pair{"tools", &out.tools}, {"documents", &out.documents}, {"chat_template_kwargs", &out.variables}})
    if (object.contains(key)) *to = object[key];
  if (!out.variables.is_null() && !out.variables.is_object())
    refuse("\"chat_template_kwargs\" is no object", "write an object, or remove it");
  return out;
}

// ShareGPT's names of speakers.
std::string_view role_of_speaker(const std::string& from, const std::string& of) {
  struct Speaker {
    std::string_view from, role;
  };
  static constexpr std::array<Speaker, 9> kSpeakers{{{"human", "user"},
                                                     {"user", "user"},
                                                     {"prompter", "user"},
                                                     {"gpt", kAnswering},
                                                     {"chatgpt", kAnswering},
                                                     {"bot", kAnswering},
                                                     {"model", kAnswering},
                                                     {"assistant", kAnswering},
                                                     {"system", "system"}}};
  const auto found = std::ranges::find(kSpeakers, from, &Speaker::from);
  if (found == kSpeakers.end())
    refuse(fmt::format("{} is from \"{}\", whom terrace does not know", of, base::printable(from, 40)),
           "write human, gpt or system, or write the conversation as \"messages\"");
  return found->role;
}

void add_message(Conversation& to, std::string_view role, const std::string& content) {
  to.messages.push_back({.role = std::string(role), .content = content, .learned = role == kAnswering});
}

Conversation of_share_gpt(const Json& object) {
  constexpr const char* kMend = "write \"conversations\" as a list of objects with \"from\" and \"value\"";
  const auto& list = object["conversations"];
  if (!list.is_array() || list.empty()) refuse("\"conversations\" is no list with messages", kMend);
  Conversation out;
  if (object.contains("system") && !object["system"].is_null())
    if (const std::string system = text_of(object, "system", "the object"); !system.empty()) add_message(out, "system", system);
  for (const auto& turn : list) {
    const auto of = fmt::format("message {} of \"conversations\"", out.messages.size() + 1);
    if (!turn.is_object()) refuse(fmt::format("{} is no object", of), kMend);
    const bool other = turn.contains("role");  // some files have the newer format's keys in a list with the older name
    const auto& from = text_of(turn, other ? "role" : "from", of);
    add_message(out, role_of_speaker(from, of), text_of(turn, other ? "content" : "value", of));
    auto& added = out.messages.back();
    added.learned = added.learned && may_be_learned(turn, of);
  }
  demand_answers(out);
  return out;
}

// Alpaca's format: the system text, earlier questions with their answers, the instruction with its input, and the answer.
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
  const bool dolly = object.contains("response") && !object.contains("output");
  if (const auto* const key = dolly ? "context" : "input"; given(key))
    if (const auto& input = text_of(object, key, it); !input.empty()) question += "\n\n" + input;
  add_message(out, "user", question);
  add_message(out, kAnswering, text_of(object, dolly ? "response" : "output", it));
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
  if (object.contains("chosen") && object.contains("rejected"))
    refuse("it is a pair of a preferred and a rejected answer, and terrace learns from answers alone",
           "write \"messages\" or \"prompt\" and \"completion\" with the preferred one");
  if (object.contains("messages") || (object.contains("prompt") && object["prompt"].is_array())) return of_messages(object);
  if (object.contains("conversations")) return of_share_gpt(object);
  if (object.contains("prompt") && object.contains("response") && !object.contains("completion")) {
    Conversation out;
    add_message(out, "user", text_of(object, "prompt", it));
    add_message(out, kAnswering, text_of(object, "response", it));
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
  if (object.contains("text"))
    refuse("it has a \"text\" and no answer to learn",
           "write the texts to a file and make its token ids with terrace tokenize");
  refuse("it has none of the keys \"messages\", \"conversations\", \"prompt\" and \"instruction\"",
         "give \"messages\", or \"prompt\" and \"completion\", or \"instruction\" and \"output\"");
}

}  // namespace terrace::lm
