#include <terrace/parallel/program/program.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>

#include <terrace/core/base/error.h>

namespace terrace {
namespace {

constexpr std::array<std::string_view, kOps> kNames{
    "forward", "recompute", "backward", "backward-input", "backward-weight", "norm",    "update",  "prefetch", "fill",
    "visit",   "evaluate",  "decode",   "gather",         "reduce",          "release", "offload", "send",     "receive",
    "prepare", "exchange",  "keep",     "verdict",        "unify",           "early",   "restore"};
constexpr std::array<std::string_view, 4> kPayloads{"activation", "gradient", "weights", "tied-gradient"};

bool has_micro_batch(Op op) { return is_layer_action(op) || op == Op::reduce || op == Op::offload; }
bool has_chunk(Op op) {
  return is_chunk_action(op) && op != Op::release && op != Op::prepare && op != Op::exchange && op != Op::verdict &&
         op != Op::unify && !is_message(op);
}

template <std::size_t n>
std::uint8_t named(const std::array<std::string_view, n>& names, const std::string& word, const char* what,
                   const std::string& line) {
  const auto at = std::ranges::find(names, word);
  if (at == names.end()) throw Error(fmt::format("program line '{}': unknown {} '{}'", line, what, word), ErrorKind::refused);
  return static_cast<std::uint8_t>(at - names.begin());
}

std::uint32_t number(std::string_view word, char prefix, const std::string& line) {
  std::uint32_t value = 0;
  const auto* const end = word.data() + word.size();
  const auto [at, error] = std::from_chars(word.data() + std::min<std::size_t>(1, word.size()), end, value);
  if (word.empty() || word[0] != prefix || error != std::errc() || at != end)
    throw Error(fmt::format("program line '{}': expected {}<number>, found '{}'", line, prefix, word), ErrorKind::refused);
  return value;
}

}  // namespace

std::string to_text(const Action& a) {
  const auto name = kNames[static_cast<std::size_t>(a.op)];
  if (a.op == Op::prefetch) return fmt::format("{} #{} {}", name, a.chunk, name_of(a.tier));
  if (a.op == Op::verdict) return fmt::format("{} u{}", name, a.update);
  if (is_message(a.op)) {
    const bool each = is_per_micro_batch(a.payload);
    return fmt::format("{} {} l{} {}{} r{}", name, kPayloads[static_cast<std::size_t>(a.payload)], a.layer, each ? 'm' : 'c',
                       each ? a.micro_batch : a.chunk, a.peer);
  }
  auto text = fmt::format("{} l{}", name, a.layer);
  if (has_micro_batch(a.op)) text += fmt::format(" m{}", a.micro_batch);
  if (has_chunk(a.op)) text += fmt::format(" c{}", a.chunk);
  if (a.copy != 0) text += fmt::format(" k{}", a.copy);
  if (a.update != 0) text += fmt::format(" u{}", a.update);
  if (a.phase != 0) text += fmt::format(" p{}", a.phase);
  return text;
}

std::string to_text(const Program& program) {
  std::string text = fmt::format("program layers l{} micro-batches m{}\n", program.layers, program.micro_batches);
  for (const auto& action : program.actions) text += to_text(action) + '\n';
  return text;
}

Program parse_program(std::string_view text) {
  Program program;
  std::istringstream lines{std::string(text)};
  bool headed = false;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::vector<std::string> w;
    for (std::string word; words >> word;) w.push_back(word);
    if (w.empty() || w[0][0] == '#') continue;
    if (!headed) {
      if (w.size() != 5 || w[0] != "program")
        throw Error(fmt::format("program line '{}': expected 'program layers l<n> micro-batches m<n>'", line),
                    ErrorKind::refused);
      program.layers = number(w[2], 'l', line);
      program.micro_batches = number(w[4], 'm', line);
      headed = true;
      continue;
    }
    Action a{.op = static_cast<Op>(named(kNames, w[0], "action", line))};
    // These numbers come last, and are written only if they are not 0.
    const auto last = [&](char prefix, std::uint32_t& value) {
      if (w.size() < 2 || w.back()[0] != prefix) return;
      value = number(w.back(), prefix, line);
      w.pop_back();
    };
    last('p', a.phase);
    last('u', a.update);
    last('k', a.copy);
    if (a.op == Op::verdict && w.size() == 1) {
      program.actions.push_back(a);
      continue;
    }
    const std::size_t expected = a.op == Op::prefetch ? 3 : is_message(a.op) ? 5 : 2U + has_micro_batch(a.op) + has_chunk(a.op);
    if (w.size() != expected)
      throw Error(fmt::format("program line '{}': expected {} words", line, expected), ErrorKind::refused);
    if (a.op == Op::prefetch) {
      a.chunk = number(w[1], '#', line);
      const auto tier = std::ranges::find_if(kAllTiers, [&](Tier t) { return name_of(t) == w[2]; });
      if (tier == kAllTiers.end())
        throw Error(fmt::format("program line '{}': unknown tier '{}'", line, w[2]), ErrorKind::refused);
      a.tier = *tier;
    } else if (is_message(a.op)) {
      a.payload = static_cast<Payload>(named(kPayloads, w[1], "payload", line));
      a.layer = number(w[2], 'l', line);
      const bool each = is_per_micro_batch(a.payload);
      (each ? a.micro_batch : a.chunk) = number(w[3], each ? 'm' : 'c', line);
      a.peer = number(w[4], 'r', line);
    } else {
      a.layer = number(w[1], 'l', line);
      if (has_micro_batch(a.op)) a.micro_batch = number(w[2], 'm', line);
      if (has_chunk(a.op)) a.chunk = number(w.back(), 'c', line);
    }
    program.actions.push_back(a);
  }
  return program;
}

}  // namespace terrace
