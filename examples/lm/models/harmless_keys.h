// Decides which config.json keys, other than the model's sizes and numbers, do not change what the model computes.
//
// Threads: any; pure.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include <terrace/examples/lm/models/family.h>

namespace terrace::lm {

// off: terrace does not know the key, and its value says false or 0. unknown: the key may change what is computed.
enum class FurtherKey : std::uint8_t { harmless, off, unknown };

// `config`: the whole file; it has the key.
FurtherKey further_key(const std::string& key, const nlohmann::json& config, const Family& family);

}  // namespace terrace::lm
