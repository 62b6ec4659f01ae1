#include <terrace/parallel/model/update_place.h>

#include <charconv>
#include <cmath>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include <terrace/core/base/error.h>

namespace terrace {

UpdatePlace::UpdatePlace(Tier tier) : UpdatePlace(tier == Tier::device ? 1.0 : 0.0) {
  if (tier == Tier::disk) throw Error("updates run on the device or on the host", ErrorKind::refused);
}

UpdatePlace::UpdatePlace(double device_share, double share_of_first_layer)
    : device_share_(device_share), share_of_first_layer_(share_of_first_layer) {
  for (const double share : {device_share, share_of_first_layer})
    if (!(share >= 0 && share <= 1))
      throw Error(fmt::format("{} is not a share of the updates to run on the device\n  give one from 0 (all on the host) to 1 "
                              "(all on the device)",
                              share),
                  ErrorKind::refused);
}

// Update n runs on the device if ⌊(n + 1) · share⌋ > ⌊n · share⌋, which spreads the share evenly.
Tier UpdatePlace::of(std::uint64_t number, bool in_first) const {
  const auto share = in_first ? share_of_first_layer_ : device_share_;
  const auto before = [&](std::uint64_t n) { return std::floor(static_cast<double>(n) * share); };
  return before(number + 1) > before(number) ? Tier::device : Tier::host;
}

std::string to_text(const UpdatePlace& place) {
  const auto share = place.device_share(), first = place.share_of_first_layer();
  if (first != share) return fmt::format("{},{}", share, first);
  return share == 0 || share == 1 ? std::string(name_of(place.most())) : fmt::format("{}", share);
}

UpdatePlace parse_update_place(const std::string& text) {
  for (const auto tier : {Tier::host, Tier::device})
    if (text == name_of(tier)) return tier;
  const auto number = [&](std::string_view word) {
    double share = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), share);
    if (error != std::errc() || end != word.data() + word.size())
      throw Error(
          fmt::format("{} is no place of updates\n  give host, device, a share such as 0.25, or one of all layers and one "
                      "of the first: 0,0.5",
                      text),
          ErrorKind::refused);
    return share;
  };
  const auto comma = text.find(',');
  if (comma == std::string::npos) return UpdatePlace(number(text));
  return {number(std::string_view(text).substr(0, comma)), number(std::string_view(text).substr(comma + 1))};
}

std::string in_words(const UpdatePlace& place) {
  const auto share = place.device_share(), first = place.share_of_first_layer();
  const auto shared = [](double of) {
    return fmt::format("the device for {:.3g} % of the chunks and on the host for the rest", 100 * of);
  };
  const auto all = share == 0 || share == 1 ? fmt::format("the {}", name_of(place.most())) : shared(share);
  return first == share ? all : fmt::format("{}; those of the first layer, which come last, on {}", all, shared(first));
}

}  // namespace terrace
