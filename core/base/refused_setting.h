// A setting that the library refuses, as a value: which one, why, and what would be accepted.
//
// A text puts the names of settings in backquotes, as the documentation names them: "give `grad-clip` 0". Only a program knows
// how its user gives a setting: `terrace` replaces the names by its flags (examples/terrace/config/setting_flags.h).
//
// Owner:   values. Threads: any.
#pragma once

#include <string>
#include <utility>

#include <terrace/core/base/error.h>

namespace terrace {

struct SettingRefusal {
  std::string setting;  // the one to change first: "grad-clip"
  std::string why;      // without an end of line
  std::string nearest;  // what would be accepted: "give `grad-clip` 0, or another `schedule`"; may be empty
};

class RefusedSetting : public Error {
 public:
  // `text` is that of any error: the reason, then after "\n  " what would be accepted.
  RefusedSetting(std::string setting, const std::string& text) : Error(text, ErrorKind::refused) {
    const auto end = text.find("\n  ");
    refusal_ = {std::move(setting), text.substr(0, end), end == std::string::npos ? "" : text.substr(end + 3)};
  }
  explicit RefusedSetting(const SettingRefusal& refusal)
      : Error(refusal.nearest.empty() ? refusal.why : refusal.why + "\n  " + refusal.nearest, ErrorKind::refused),
        refusal_(refusal) {}
  [[nodiscard]] const SettingRefusal& refusal() const noexcept { return refusal_; }

 private:
  SettingRefusal refusal_;
};

}  // namespace terrace
