// The place of updates: on the host, on the device, or a share of them on the device and the rest on the host.
//
// A share is spread evenly over the model's groups of chunks, so that both processors work during the whole step. The place of
// an update does not change its bits (docs/internals/optimizers.md).
//
// Pure. Threads: any. Errors: Error(ErrorKind::refused) for the disk, and for shares outside 0..1.
#pragma once

#include <cstdint>
#include <string>

#include <terrace/memory/tier.h>

namespace terrace {

class UpdatePlace {
 public:
  UpdatePlace(Tier tier);  // NOLINT(google-explicit-constructor): a tier is the plainest place
  explicit UpdatePlace(double device_share);

  // The place of update `number`, counted over the groups of chunks of all layers.
  [[nodiscard]] Tier of(std::uint64_t number) const;
  [[nodiscard]] Tier most() const { return device_share_ >= 0.5 ? Tier::device : Tier::host; }
  [[nodiscard]] double device_share() const { return device_share_; }
  friend bool operator==(const UpdatePlace&, const UpdatePlace&) = default;

 private:
  double device_share_ = 0;
};

std::string to_text(const UpdatePlace& place);   // "host", "device", or the device's share: "0.25"
std::string in_words(const UpdatePlace& place);  // follows the word "on" in a sentence: "the host"

}  // namespace terrace
