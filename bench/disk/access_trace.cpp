#include <terrace/bench/disk/access_trace.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <sstream>

#include <fmt/format.h>

#include <terrace/core/base/refused.h>

namespace terrace::bench {
namespace {

constexpr std::array<std::string_view, 3> kAccesses{"read", "overwrite", "update"};  // in the order of Access
constexpr std::string_view kDrop = "drop";

[[noreturn]] void refuse(std::size_t line, const std::string& what) {
  throw base::Refused(fmt::format(
      "access trace, line {}: {}\n  a line is: device|host, then read|overwrite|update|drop:CHUNK:BYTES …", line, what));
}

std::uint64_t number(std::string_view text, std::size_t line) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty())
    refuse(line, fmt::format("\"{}\" is not a number", text));
  return value;
}

}  // namespace

bool operator==(const AccessTrace::Action& a, const AccessTrace::Action& b) {
  const auto same = [](const Use& x, const Use& y) { return x.chunk == y.chunk && x.access == y.access; };
  return a.tier == b.tier && a.dead == b.dead && std::ranges::equal(a.uses, b.uses, same);
}

std::string to_text(const AccessTrace& trace) {
  std::string out;
  for (const auto& action : trace.actions) {
    out += name_of(action.tier);
    const auto add = [&](std::string_view what, ChunkId chunk) {
      out += fmt::format(" {}:{}:{}", what, index(chunk), trace.chunk_bytes[index(chunk)]);
    };
    for (const auto& use : action.uses) add(kAccesses[static_cast<std::size_t>(use.access)], use.chunk);
    for (const auto chunk : action.dead) add(kDrop, chunk);
    out += '\n';
  }
  return out;
}

AccessTrace parse_trace(std::string_view text) {
  AccessTrace trace;
  std::map<std::uint64_t, ChunkId> chunks;
  std::istringstream lines{std::string(text)};
  std::size_t n = 0;
  for (std::string line; std::getline(lines, line);) {
    ++n;
    std::istringstream words(line);
    std::string word;
    if (!(words >> word) || word.front() == '#') continue;
    AccessTrace::Action action;
    if (word != "device" && word != "host") refuse(n, fmt::format("\"{}\" is not a tier that can be replayed", word));
    action.tier = word == "device" ? Tier::device : Tier::host;
    while (words >> word) {
      const auto first = word.find(':'), second = word.find(':', first == std::string::npos ? first : first + 1);
      if (second == std::string::npos) refuse(n, fmt::format("\"{}\" is not an access", word));
      const std::string_view view = word, what = view.substr(0, first);
      const auto id = number(view.substr(first + 1, second - first - 1), n), bytes = number(view.substr(second + 1), n);
      const auto [at, fresh] = chunks.try_emplace(id, ChunkId(static_cast<std::uint32_t>(trace.chunk_bytes.size())));
      if (fresh) trace.chunk_bytes.push_back(bytes);
      if (trace.chunk_bytes[index(at->second)] != bytes)
        refuse(n, fmt::format("chunk {} has a different size than before", id));
      const auto access = std::ranges::find(kAccesses, what);
      if (access != kAccesses.end()) {
        action.uses.push_back({at->second, static_cast<Access>(access - kAccesses.begin())});
      } else if (what == kDrop) {
        action.dead.push_back(at->second);
      } else {
        refuse(n, fmt::format("\"{}\" is not an access", what));
      }
    }
    trace.actions.push_back(std::move(action));
  }
  if (trace.actions.empty())
    throw base::Refused("the access trace is empty\n  record one: terrace bench residency --record FILE");
  return trace;
}

}  // namespace terrace::bench
