// The names of MLP activation functions in Hugging Face's library, as a setting and in a config.json.
//
// Threads: any; pure.
#pragma once

#include <optional>
#include <string_view>

#include <terrace/core/math/math.h>

namespace terrace::lm {

// "silu", "gelu", "gelu_pytorch_tanh" and their other names. `inputs`: 2 for a gated MLP. Returns nothing for an unknown name.
std::optional<Activation> activation_named(std::string_view name, std::int64_t inputs);
std::string_view name_of(Activation kind);  // the usual one

}  // namespace terrace::lm
