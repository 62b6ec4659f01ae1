#include <terrace/examples/lm/chat/jinja/search.h>

#include <algorithm>

namespace terrace::lm::jinja {
namespace {

constexpr std::size_t kBytesOfAPlace = 8;  // comparing at a place whose first byte fits is charged like reading this many bytes

// Whether `part` is in the text at `at`. `read` counts the bytes that this compares, and is charged from time to time.
bool stands_at(std::string_view text, std::string_view part, std::size_t at, std::size_t& read, Work& work) {
  const auto same = static_cast<std::size_t>(std::ranges::mismatch(part, text.substr(at, part.size())).in1 - part.begin());
  read += same + kBytesOfAPlace;
  if (read >= kBytesOfAStep) {
    work.take_read(read);
    read %= kBytesOfAStep;
  }
  return same == part.size();
}

}  // namespace

std::size_t find_first(std::string_view text, std::string_view part, std::size_t from, Work& work) {
  if (part.empty()) return from <= text.size() ? from : std::string_view::npos;
  std::size_t read = 0;
  for (auto at = from; part.size() <= text.size() && at <= text.size() - part.size(); ++at) {
    const auto next = text.find(part.front(), at);
    read += std::min(next, text.size()) - at;
    if (next > text.size() - part.size()) break;
    if (stands_at(text, part, next, read, work)) return next;
    at = next;
  }
  work.take_read(read);
  return std::string_view::npos;
}

std::size_t find_last(std::string_view text, std::string_view part, Work& work) {
  if (part.size() > text.size()) return std::string_view::npos;
  if (part.empty()) return text.size();
  std::size_t read = 0;
  for (auto end = text.size() - part.size() + 1; end > 0;) {  // places before `end` are still to be searched
    const auto next = text.rfind(part.front(), end - 1);
    read += end - (next == std::string_view::npos ? 0 : next);
    if (next == std::string_view::npos) break;
    if (stands_at(text, part, next, read, work)) return next;
    end = next;
  }
  work.take_read(read);
  return std::string_view::npos;
}

}  // namespace terrace::lm::jinja
