#include <terrace/examples/lm/chat/json_elements.h>

namespace terrace::lm {

void JsonElements::end(const Take& take) {
  while (!element_.empty() &&
         (element_.back() == ' ' || element_.back() == '\n' || element_.back() == '\r' || element_.back() == '\t'))
    element_.pop_back();
  if (!element_.empty()) take(element_);
  element_.clear();
}

void JsonElements::read(std::string_view piece, const Take& take) {
  for (const char c : piece) {
    const bool space = c == ' ' || c == '\n' || c == '\r' || c == '\t';
    if (closed_) {
      goes_on_ = goes_on_ || !space;
      continue;
    }
    if (in_text_) {
      in_text_ = escaped_ || c != '"';
      escaped_ = !escaped_ && c == '\\';
    } else if (c == '"') {
      in_text_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (depth_ > 0 && (c == '}' || c == ']')) {
      --depth_;
    } else if (depth_ == 0 && (c == ',' || c == ']')) {
      end(take);
      closed_ = c == ']';
      continue;
    }
    if (element_.empty() && space) continue;
    element_ += c;
  }
}

}  // namespace terrace::lm
