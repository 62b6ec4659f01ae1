#include <terrace/parallel/model/skips.h>

#include <stdexcept>

namespace terrace::model {

Skips::Skips(const Model& model) {
  for (std::uint32_t l = 0; l < model.layers.size(); ++l) {
    const auto& layer = *model.layers[l];
    const auto from = layer.facts().skips_from;
    if (!from) continue;
    if (into_.empty()) into_ = reader_ = std::vector(model.layers.size(), kNone);
    const auto k = *from + 1;
    if (k >= l) throw std::logic_error(layer.name() + " skips from a layer that is not earlier than the one before it");
    if (reader_[k] != kNone) throw std::logic_error(layer.name() + " skips from the same layer as another one");
    into_[l] = k;
    reader_[k] = l;
  }
}

}  // namespace terrace::model
