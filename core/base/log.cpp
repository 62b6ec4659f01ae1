#include <terrace/core/base/log.h>

#include <atomic>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>

#include <terrace/core/base/notice.h>

namespace terrace {

struct Log::Place {
  explicit Place(Take given) : take(std::move(given)) {}
  const Take take;
  std::atomic<unsigned> told_once{0};  // a bit for each Once

  void tell(Level level, std::string_view text) const noexcept try { take(level, text); } catch (const std::exception&) {
  }
};

// All logs to it share one place, because a process has one standard error: what was said there once is not repeated.
const std::shared_ptr<Log::Place>& Log::standard_error() {
  static const auto place = std::make_shared<Place>([](Level level, std::string_view text) {
    if (level == Level::warning) return terrace::base::warn(text);
    base::say(stderr, std::string(text) + '\n');
  });
  return place;
}

Log::Log() : place_(standard_error()) {}
Log::Log(Take take) : place_(std::make_shared<Place>(std::move(take))) {}

void Log::note(std::string_view text) const noexcept { place_->tell(Level::note, text); }

void Log::warn(std::string_view text) const noexcept { place_->tell(Level::warning, text); }

void Log::warn_once(Once fact, std::string_view text) const noexcept {
  const auto bit = 1U << static_cast<unsigned>(fact);
  if ((place_->told_once.fetch_or(bit) & bit) == 0) warn(text);
}

}  // namespace terrace
