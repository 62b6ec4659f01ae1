#include <terrace/examples/lm/models/activation_name.h>

#include <array>
#include <utility>

namespace terrace::lm {
namespace {

// The first name of each function is the usual one.
constexpr std::array<std::pair<std::string_view, Activation>, 8> kNames{{{"silu", Activation::swiglu},
                                                                         {"swish", Activation::swiglu},
                                                                         {"gelu", Activation::geglu_erf},
                                                                         {"gelu_pytorch_tanh", Activation::geglu_tanh},
                                                                         {"gelu_new", Activation::geglu_tanh},
                                                                         {"gelu", Activation::gelu_erf},
                                                                         {"gelu_new", Activation::gelu_tanh},
                                                                         {"gelu_pytorch_tanh", Activation::gelu_tanh}}};

}  // namespace

std::optional<Activation> activation_named(std::string_view name, std::int64_t inputs) {
  for (const auto& [known, kind] : kNames)
    if (name == known && inputs_of(kind) == inputs) return kind;
  return std::nullopt;
}

std::string_view name_of(Activation kind) {
  for (const auto& [name, known] : kNames)
    if (kind == known) return name;
  return {};
}

}  // namespace terrace::lm
