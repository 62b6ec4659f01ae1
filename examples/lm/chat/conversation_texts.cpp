#include <terrace/examples/lm/chat/conversation_texts.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/chat/json_elements.h>
#include <terrace/offload/store/chunk_store.h>

namespace terrace::lm {
namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 20, kWindow = std::size_t{1} << 20;
using Take = std::function<void(const std::string& place, std::string_view text)>;

std::uint64_t with_window(std::uint64_t until_here, std::string_view window) {
  const std::array<std::uint64_t, 2> both{until_here, checksum_of(std::as_bytes(std::span(window)))};
  return checksum_of(std::as_bytes(std::span(both)));
}

// Returns the position after the array's bracket; 0 if the content is not an array.
std::size_t begin_of_array(DataStream& in) {
  constexpr std::size_t kLooksAt = 4096;
  const auto text = in.peek(kLooksAt).substr(0, kLooksAt);
  const auto at = text.find_first_not_of(" \t\r\n");
  return at == std::string_view::npos || text[at] != '[' ? 0 : at + 1;
}

std::uint64_t each_element(DataStream& in, const std::string& name, std::size_t begin, const Take& take) {
  const auto refuse = [&](const std::string& why) {
    throw base::Refused(
        fmt::format("{}: {}\n  it begins as one JSON array, and each element must be one JSON object", name, why));
  };
  std::uint64_t checksum = 0, number = 0;
  JsonElements elements;
  for (;;) {
    const auto window = in.peek(kWindow).substr(0, kWindow);
    if (window.empty()) break;
    checksum = with_window(checksum, window);
    elements.read(window.substr(std::exchange(begin, 0)),
                  [&](std::string_view element) { take(fmt::format("element {}", ++number), element); });
    if (elements.longest() > kMostBytes) refuse(fmt::format("element {} has more than {} bytes", number + 1, kMostBytes));
    in.skip(window.size());
  }
  if (!elements.closed()) refuse("its array does not end");
  if (elements.goes_on()) refuse("something stands behind its array");
  return checksum;
}

// A line that does not end within the window is read again from its beginning with a larger window.
std::uint64_t each_line(DataStream& in, const std::string& name, const Take& take) {
  std::uint64_t checksum = 0, number = 0;
  for (auto wanted = kWindow;;) {
    auto window = in.peek(wanted + 1);
    if (window.empty()) return checksum;
    if (window.size() > wanted) {  // the file continues after the window
      window = window.substr(0, wanted);
      const auto newline = window.rfind('\n');
      if (newline == std::string_view::npos) {
        if (wanted >= kMostBytes)
          throw base::Refused(fmt::format("{}, line {}: it has more than {} bytes\n  each line must be one JSON object", name,
                                          number + 1, kMostBytes));
        wanted *= 2;
        continue;
      }
      window = window.substr(0, newline + 1);
    }
    checksum = with_window(checksum, window);
    for (std::size_t at = 0; at < window.size();) {
      const auto end = std::min(window.find('\n', at), window.size());
      take(fmt::format("line {}", ++number), window.substr(at, end - at));
      at = end + 1;
    }
    in.skip(window.size());
    wanted = kWindow;
  }
}

}  // namespace

std::uint64_t each_conversation_text(DataStream& in, const std::string& name, const Take& take) {
  const auto begin = begin_of_array(in);
  return begin > 0 ? each_element(in, name, begin, take) : each_line(in, name, take);
}

}  // namespace terrace::lm
