// The place of updates: on the host, on the device, or a share of them on the device and the rest on the host.
//
// A share is spread evenly over the model's groups of chunks, so that both processors work during the whole step. The first
// layer may have another share: in a step that updates in the backward, its update comes last, and nothing hides it. The place
// of an update does not change its bits (docs/internals/optimizers.md).
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
  explicit UpdatePlace(double device_share) : UpdatePlace(device_share, device_share) {}
  UpdatePlace(double device_share, double share_of_first_layer);

  // The place of update `number`, counted over the groups of chunks of all layers; in_first: it is the first layer's.
  [[nodiscard]] Tier of(std::uint64_t number, bool in_first) const;
  [[nodiscard]] Tier most() const { return device_share_ >= 0.5 ? Tier::device : Tier::host; }
  [[nodiscard]] double device_share() const { return device_share_; }
  [[nodiscard]] double share_of_first_layer() const { return share_of_first_layer_; }
  friend bool operator==(const UpdatePlace&, const UpdatePlace&) = default;

 private:
  double device_share_ = 0, share_of_first_layer_ = 0;
};

// "host", "device", the device's share: "0.25", or this and the share of the first layer: "0,0.5". parse() takes the same
// words.
std::string to_text(const UpdatePlace& place);
UpdatePlace parse_update_place(const std::string& text);  // Error(ErrorKind::refused) if it is none of these
std::string in_words(const UpdatePlace& place);           // follows the word "on" in a sentence: "the host"

}  // namespace terrace
