// How a model changes the angles of its rotary positions (core/math/rotary.h), as a setting and as an object in a config.json
// of Hugging Face's library.
//
//   none · linear:factor=8 · dynamic:factor=4,original=2048 · llama3:factor=8,low=1,high=4,original=8192
//   longrope:original=4096,length=1.19,short=1/1/1.02,long=1.05/1.1/8, with a number for each rotated pair
//   yarn:factor=4,original=32768[,fast=32,slow=1,length=1.1386,whole=false]
//
// Threads: any; pure.
// Errors:  Error(ErrorKind::refused) that says what is wrong in the text or the object.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include <terrace/core/math/rotary.h>

namespace terrace::lm {

Rotary parse_rope_scaling(std::string_view text);
std::string_view kind_of(const Rotary& scaling);  // "yarn"
std::string to_text(const Rotary& scaling);       // what parse_rope_scaling() reads

// `object`: `rope_scaling` or `rope_parameters`. If the file has `original_max_position_embeddings` outside the object, the
// caller copies it into the object first. `positions`: max_position_embeddings, from which some kinds count.
Rotary rope_scaling_of(const nlohmann::json& object, double positions);
nlohmann::json rope_scaling_json(const Rotary& scaling);  // null: none

}  // namespace terrace::lm
