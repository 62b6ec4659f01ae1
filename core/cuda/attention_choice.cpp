#include <terrace/core/cuda/attention_choice.h>

#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/error.h>

namespace terrace::cuda {
namespace {

constexpr std::string_view kWarps = "warps", kWarpgroups = "warpgroups";

}  // namespace

AttentionChoice::AttentionChoice(Given given, KnownAlgorithms known) : given_(std::move(given)), known_(std::move(known)) {
  if (!given_.forced.empty() && given_.forced != kWarps && given_.forced != kWarpgroups)
    throw Error(fmt::format("`attention-kernel`={}: there is no such kernel; use {}, {}, or unset it", given_.forced, kWarps,
                            kWarpgroups),
                ErrorKind::refused);
  if (given_.forced == kWarpgroups && !given_.no_warpgroups.empty())
    throw Error(
        fmt::format("`attention-kernel`={}, but that is not possible here: {}\n  unset it", kWarpgroups, given_.no_warpgroups),
        ErrorKind::missing);
}

AttentionKernel AttentionChoice::of(const AttentionSubject& subject, const std::function<std::string()>& check) {
  const std::lock_guard lock(mutex_);
  const auto at = chosen_.find(subject);
  return at != chosen_.end() ? at->second : chosen_.emplace(subject, choose(subject, check)).first->second;
}

AttentionKernel AttentionChoice::choose(const AttentionSubject& subject, const std::function<std::string()>& check) const {
  if (!given_.forced.empty()) return given_.forced == kWarps ? AttentionKernel::warps : AttentionKernel::warpgroups;
  const auto recorded = known_.attention(subject, given_.library);
  if (recorded.kernel == kWarps) return AttentionKernel::warps;
  auto trouble = given_.no_warpgroups;
  if (trouble.empty()) trouble = check();
  if (trouble.empty()) return AttentionKernel::warpgroups;
  if (recorded.by_run)
    throw Error(fmt::format("{}: this run began with the warpgroup kernel, which cannot be used here: {}\n  resume on the "
                            "machine where it began, or set `attention-kernel`={}: that kernel gives other bits",
                            to_string(subject), trouble, kWarps),
                ErrorKind::missing);
  if (given_.no_warpgroups.empty())
    given_.log.warn(
        fmt::format("{}: the warpgroup kernel is not used, because it failed its check on this GPU: "
                    "{}; the kernel of warps, which is used, is correct but slower",
                    to_string(subject), trouble));
  return AttentionKernel::warps;
}

std::string AttentionChoice::algorithms() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const auto& [subject, kernel] : chosen_)
    text += fmt::format("{}: {}\n", to_string(subject), kernel == AttentionKernel::warps ? kWarps : kWarpgroups);
  return text;
}

}  // namespace terrace::cuda
