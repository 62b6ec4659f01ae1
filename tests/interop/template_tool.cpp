// Used by chat_templates.py: writes and encodes conversations without the command line of `terrace`.
//
//   template_tool write CASES OUT
//                                       a line of CASES is {"template", "messages", "variables", "add_generation_prompt"};
//                                       a line of OUT is {"text", "generated": [[begin, end], …] in bytes}, or {"error"}
//   template_tool encode FOLDER CONVERSATIONS OUT
//                                       FOLDER has a tokenizer.json and the files beside it; a line of OUT has the documents
//                                       of one conversation, [[ids, learned], …], or {"error"}
//   template_tool prompt FOLDER CONVERSATIONS OUT
//                                       the ids before the next answer
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/chat/chat_format.h>
#include <terrace/examples/lm/chat/chat_template.h>
#include <terrace/examples/lm/chat/exact_json.h>
#include <terrace/examples/lm/chat/jinja/json.h>

namespace {

using namespace terrace;
using Json = nlohmann::ordered_json;

constexpr std::int64_t kNow = 1'700'000'000;

template <class Each>
void each_line(const std::string& in, const std::string& out, const Each& each) {
  std::ifstream lines(in);
  std::ofstream to(out);
  for (std::string line; std::getline(lines, line);) {
    Json made;
    try {
      made = each(line);
    } catch (const Error& error) {
      made = {{"error", error.what()}};
    } catch (const lm::jinja::Fault& fault) {
      made = {{"error", fault.what}};
    }
    to << made.dump(-1, ' ', true, Json::error_handler_t::replace) << '\n';
  }
}

Json written(const std::string& line) {
  const auto one = lm::parse_exact_json(line);
  const lm::ChatTemplate chat(one["template"].get<std::string>(), "case", {}, kNow);
  lm::TemplateInput input;
  for (const auto& message : one["messages"]) input.messages.push_back(lm::template_message(message));
  for (const auto& [key, value] : one["variables"].items()) input.more.emplace_back(key, lm::jinja::from_json(value));
  const auto made = chat.write(input, input.messages.size(), one["add_generation_prompt"].get<bool>());
  auto spans = Json::array();
  for (const auto& [begin, end] : made.generated) spans.push_back({begin, end});
  return {{"text", made.text}, {"generated", spans}};
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.at(0) == "write") {
    each_line(words.at(1), words.at(2), written);
    return 0;
  }
  const std::filesystem::path folder = words.at(1);
  const auto tokenizer = lm::Tokenizer::read(folder / "tokenizer.json");
  const lm::ChatFormat format(tokenizer, lm::read_tokenizer_config(folder), kNow);
  lm::Encoding with;
  each_line(words.at(2), words.at(3), [&](const std::string& line) -> Json {
    const auto conversation = lm::parse_conversation(line);
    if (words[0] == "prompt") return format.encode_prompt(conversation.messages);
    auto documents = Json::array();
    for (const auto& document : format.encode(conversation, with)) documents.push_back({document.tokens, document.learned});
    return documents;
  });
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
