// The table of names: an optimizer's factory and its description, one line each.
#include <terrace/optimizers/optimizer.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>

#include <terrace/core/base/error.h>

namespace terrace {
namespace rules {

using Factory = std::unique_ptr<Optimizer>(const OptimizerSettings&, Isa);
Factory make_adafactor, make_adagrad, make_adam, make_adamw, make_lamb, make_lion, make_muon, make_sgd;

}  // namespace rules

namespace {

struct Row {
  OptimizerName name;
  rules::Factory* make;
};
constexpr std::array kTable{
    Row{{"adamw", "Adam with decoupled weight decay"}, rules::make_adamw},
    Row{{"adam", "Adam, weight decay as L2"}, rules::make_adam},
    Row{{"sgd", "gradient descent, with `momentum` and `nesterov`"}, rules::make_sgd},
    Row{{"lion", "the sign of an interpolated momentum"}, rules::make_lion},
    Row{{"adagrad", "the root of the sum of squares"}, rules::make_adagrad},
    Row{{"lamb", "AdamW, each tensor's step in proportion to its weights"}, rules::make_lamb},
    Row{{"adafactor", "the second moment from sums of rows and columns"}, rules::make_adafactor},
    Row{{"muon", "orthogonalised momentum for matrices, AdamW for the rest"}, rules::make_muon},
};
constexpr auto kNames = [] {
  std::array<OptimizerName, kTable.size()> names{};
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kTable[i].name;
  return names;
}();

}  // namespace

std::span<const OptimizerName> optimizers() { return kNames; }

void Optimizer::enqueue_layer(Stream&, const UpdateStep&, const LayerUpdate&) const {
  throw std::logic_error(name() + " updates chunks, not layers");
}

void Optimizer::enqueue(Stream& stream, const UpdateStep& step, const ChunkUpdate& chunk) const {
  stream.submit([this, &pool = stream.device().pool(), step, own = chunk,
                 parts = std::vector(chunk.parts.begin(), chunk.parts.end())]() mutable {
    own.parts = parts;
    update(pool, step, own);
  });
}

std::unique_ptr<Optimizer> make_optimizer(std::string_view name, const OptimizerSettings& settings, rules::Isa isa) {
  const auto at = std::ranges::find(kTable, name, [](const Row& row) { return row.name.name; });
  if (at != kTable.end()) return at->make(settings, isa);
  std::vector<std::string_view> known;
  for (const auto& row : kTable) known.push_back(row.name.name);
  throw Error(fmt::format("unknown optimizer \"{}\"\n  known are {}", name, fmt::join(known, ", ")), ErrorKind::refused);
}

}  // namespace terrace
