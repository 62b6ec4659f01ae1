#include <terrace/parallel/model/update_place.h>

#include <cmath>

#include <fmt/format.h>

#include <terrace/core/base/error.h>

namespace terrace {

UpdatePlace::UpdatePlace(Tier tier) : UpdatePlace(tier == Tier::device ? 1.0 : 0.0) {
  if (tier == Tier::disk) throw Error("updates run on the device or on the host", ErrorKind::refused);
}

UpdatePlace::UpdatePlace(double device_share) : device_share_(device_share) {
  if (!(device_share >= 0 && device_share <= 1))
    throw Error(fmt::format("{} is not a share of the updates to run on the device\n  give one from 0 (all on the host) to 1 "
                            "(all on the device)",
                            device_share),
                ErrorKind::refused);
}

// Update n runs on the device if ⌊(n + 1) · share⌋ > ⌊n · share⌋, which spreads the share evenly.
Tier UpdatePlace::of(std::uint64_t number) const {
  const auto before = [&](std::uint64_t n) { return std::floor(static_cast<double>(n) * device_share_); };
  return before(number + 1) > before(number) ? Tier::device : Tier::host;
}

std::string to_text(const UpdatePlace& place) {
  const auto share = place.device_share();
  return share == 0 || share == 1 ? std::string(name_of(place.most())) : fmt::format("{}", share);
}

std::string in_words(const UpdatePlace& place) {
  const auto share = place.device_share();
  if (share == 0 || share == 1) return fmt::format("the {}", name_of(place.most()));
  return fmt::format("the device for {:.3g} % of the chunks and on the host for the rest", 100 * share);
}

}  // namespace terrace
