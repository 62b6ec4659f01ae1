// terrace chat RUN: reads messages from standard input, one in a line, and answers each with a run's committed weights.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <terrace/core/base/notice.h>
#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/generate/generator.h>
#include <terrace/examples/terrace/commands/commands.h>
#include <terrace/examples/terrace/commands/text_options.h>
#include <terrace/examples/terrace/data/run_text.h>
#include <terrace/examples/terrace/run/weights_reader.h>

namespace terrace::cli {
namespace {

constexpr std::size_t kMostMessageBytes = std::size_t{1} << 20;

// A signal handler can reach only globals.
std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler must not wait");

// Ctrl-C ends an answer. Without SA_RESTART it also ends waiting for a line.
void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = true; };
  ::sigaction(SIGINT, &action, nullptr);
}

// The next line of standard input without its newline; nothing at the end. What was typed before Ctrl-C is forgotten.
std::optional<std::string> read_message(bool at_terminal) {
  const auto ask = [&] {
    if (at_terminal) fmt::print("> ");
    std::fflush(stdout);
  };
  std::string line;
  for (ask();;) {
    errno = 0;
    const int c = std::fgetc(stdin);
    if (c == EOF && std::ferror(stdin) && errno == EINTR) {
      std::clearerr(stdin);
      if (!at_terminal) continue;  // the signal ends the next answer
      interrupted = false;
      line.clear();
      fmt::print("\n");
      ask();
      continue;
    }
    if (c == EOF && std::ferror(stdin))
      throw Error(fmt::format("standard input cannot be read: {}\n  give messages from a terminal, a pipe or a file",
                              describe_errno(errno)));
    if (c == EOF && line.empty()) return {};
    if (c == EOF || c == '\n') break;
    line += static_cast<char>(c);
    if (line.size() > kMostMessageBytes)
      throw base::Refused(fmt::format("a message has more than {} bytes\n  end messages with a newline", kMostMessageBytes));
  }
  if (line.ends_with('\r')) line.pop_back();
  return line;
}

// A published model allows more positions than most memories can keep keys and values for.
std::int64_t positions_of(const CommandLine& line) {
  constexpr std::int64_t kOfModel = 4096;
  const auto all = line.config.model.seq_len;
  return is_run(line.positional.at(0)) ? all : std::min(all, kOfModel);
}

class Chat {
 public:
  explicit Chat(const CommandLine& line)
      : line_(line),
        text_(line.config, line.positional.at(0), line.generate.tokenizer, line.generate.stop_token),
        format_(text_.chat_format(std::time(nullptr))),
        weights_(line.config, line.positional.at(0), {.decode_positions = positions_of(line)}),
        generator_(weights_.engine(), weights_.device(), line.config.model.vocab, weights_.model().dtype, positions_of(line)) {
    if (line.generate.stop_token != "none" && !format_.end().empty()) text_.end_at(format_.end());
    if (!line.chat.system.empty()) messages_.push_back({"system", line.chat.system});
    first_ = messages_.size();
  }

  void answer(std::string message) {
    messages_.push_back({"user", std::move(message)});
    auto tokens = fitting_tokens();
    if (tokens.empty()) return;
    const auto before = tokens.size();
    std::string answer;
    const auto end = generator_.generate(
        tokens, text_, line_.generate.sampling,
        {.most_tokens = line_.chat.max_tokens, .interrupted = [] { return interrupted.load(); }}, [] {},
        [&](std::string_view more) {
          answer += more;
          if (line_.config.run.json) return;
          fmt::print("{}", shown_on(STDOUT_FILENO, std::string(more)));
          std::fflush(stdout);
        });
    interrupted = false;  // reset before the line ends: a reader of the line may then interrupt the next answer
    const nlohmann::json object{{"answer", answer}, {"tokens", tokens.size() - before}, {"end", name_of(end)}};
    fmt::print("{}\n", line_.config.run.json ? object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) : "");
    std::fflush(stdout);
    messages_.push_back({std::string(lm::kAnswering), std::move(answer)});
  }

  [[nodiscard]] std::string warning() const { return format_.warning(); }

 private:
  // The conversation as tokens, with room for an answer. The oldest questions are dropped first, together with their answers,
  // because a template may demand that a question comes first. Empty if the last question alone is too long.
  std::vector<std::int32_t> fitting_tokens() {
    for (std::size_t dropped = 0;;) {
      const auto tokens = format_.encode_prompt(messages_);
      if (std::cmp_less(tokens.size(), generator_.positions())) {
        if (dropped > 0)
          base::say(stderr, fmt::format("the conversation is too long: {} old messages were forgotten\n", dropped));
        return {tokens.begin(), tokens.end()};
      }
      if (messages_.size() == first_ + 1) {
        base::say(stderr,
                  fmt::format("the message and what stands around it have {} tokens, but the model has {} positions: write a "
                              "shorter one\n",
                              tokens.size(), generator_.positions()));
        messages_.pop_back();
        return {};
      }
      do {
        messages_.erase(messages_.begin() + static_cast<std::ptrdiff_t>(first_));
        ++dropped;
      } while (messages_[first_].role == lm::kAnswering);
    }
  }

  const CommandLine& line_;
  RunText text_;
  lm::ChatFormat format_;
  WeightsReader weights_;
  lm::Generator generator_;
  std::vector<lm::Message> messages_;
  std::size_t first_ = 0;  // the first message that may be dropped
};

Exit run_chat(const CommandLine& line) {
  Chat chat(line);
  if (const auto warning = chat.warning(); !warning.empty()) base::warn(warning);
  catch_interrupts();
  const bool at_terminal = ::isatty(STDIN_FILENO) && ::isatty(STDOUT_FILENO);
  while (auto message = read_message(at_terminal))
    if (message->find_first_not_of(" \t") != std::string::npos) chat.answer(std::move(*message));
  return Exit::ok;
}

void add_chat_options(CLI::App& sub, CommandLine& out) {
  sub.add_option("--system", out.chat.system, "system message that begins the conversation");
  add_tokenizer(sub, out.generate);
  sub.add_option("--max-tokens", out.chat.max_tokens, "tokens of an answer, at most")->capture_default_str();
  add_sampling(sub, out.generate);
}

void check_chat(const CommandLine& line) {
  check_directories(line, kOfWeights, 1);
  check_sampling(line.generate, line.chat.max_tokens, line.command);
}

}  // namespace

Command chat_command() {
  return {.name = "chat",
          .help = "talk with a trained run or the model in a directory, on standard input and output",
          .takes = {"memory", "threads", "json", "machine-profile"},
          .positional = "RUN|DIR",
          .examples = {"terrace chat runs/mine", "terrace chat runs/mine --system 'Answer in one sentence.'"},
          .reads_weights = true,
          .add_options = add_chat_options,
          .check = check_chat,
          .run = run_chat};
}

}  // namespace terrace::cli
