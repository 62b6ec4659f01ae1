// The first weights of a run: random numbers, or the weights that --init-from names (a safetensors file, or the directory of a
// model, lm/weights/weight_files.h).
//
// A file of another model is refused. No tensor has the rotary base, the norm epsilon and the number of heads: these are
// compared with the metadata of a file that --save wrote, or else with the config.json beside the file, as in Hugging Face's
// models.
//
// Threads: any.
// Errors:  Error(ErrorKind::refused) for a file of another model, and for a value that contradicts the file;
//          Error(ErrorKind::corrupt) for a damaged file.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/parallel/run/engine.h>

namespace terrace::cli {

// Makes all checks at once. Only the first rank of each machine makes those that read tensors.
WeightSource first_weights(const RunConfig& config, const Model& model);

// Warnings about the file: values that it does not have, positions that are dropped, keys that terrace does not know, windows
// that are left out, and a scaling of positions that differs from the run's.
std::vector<std::string> warnings_of_init_from(const RunConfig& config, const Model& model);

// Warns if a run starts with new weights although a model's directory has the name of its family.
std::optional<std::string> warning_of_family(const RunConfig& config);

// The metadata of a file of --save: the values that no tensor has.
std::map<std::string, std::string> metadata_of_saved(const RunConfig& config);

}  // namespace terrace::cli
