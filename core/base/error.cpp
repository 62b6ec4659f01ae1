#include <terrace/core/base/error.h>

#include <cstring>
#include <filesystem>

#include <fmt/format.h>

namespace terrace {

Error::Error(const std::string& what, const Error& cause, const std::string& path)
    : std::runtime_error(what), kind_(cause.kind_), facts_(cause.facts_) {
  if (!path.empty() && cause.path().empty()) facts_ = std::make_shared<const ErrorFacts>(cause.facts_at(path));
}

ErrorFacts Error::facts_at(const std::string& path) const {
  auto all = facts();
  if (all.path.empty()) all.path = path;
  return all;
}

const ErrorFacts& Error::facts() const noexcept {
  static const ErrorFacts kNone;
  return facts_ ? *facts_ : kNone;
}

std::string describe_errno(int error_number) {
  char buffer[256] = "unknown error";
  // The GNU strerror_r returns the text, which need not lie in the buffer.
  return fmt::format("{} (errno {})", strerror_r(error_number, buffer, sizeof buffer), error_number);
}

std::error_code code_of_errno(int error_number) { return {error_number, std::generic_category()}; }

Error errno_error(int error_number, const std::string& path, std::string_view what, std::string_view mend) {
  return {
      fmt::format("{}{}{}{}{}", what, what.empty() ? "" : ": ", describe_errno(error_number), mend.empty() ? "" : "\n  ", mend),
      ErrorKind::failed,
      {.code = code_of_errno(error_number), .path = path}};
}

std::string describe(const std::exception& error) {
  const auto* const file = dynamic_cast<const std::filesystem::filesystem_error*>(&error);
  if (!file) return error.what();
  const auto path = file->path1().string();
  return fmt::format("{}: {}", path.empty() ? "the current directory" : path, describe_errno(file->code().value()));
}

}  // namespace terrace
