// Where the first weights of a run come from: random numbers, or what --init-from names: a safetensors file, or a directory
// with the weights of a model (lm/weight_files.h).
//
// A file of another model is refused. The rotary base, the norm epsilon and the number of heads are in no tensor: they are
// compared with the metadata of a file that --save wrote, or else with the config.json beside the file, which Hugging Face's
// models have.
//
// Threads: any.
// Errors:  Error(Exit::usage) for a file of another model, and for a value that the file contradicts; Error(Exit::corrupt) for
// a
//          damaged file.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <terrace/examples/terrace/run_config.h>
#include <terrace/parallel/engine.h>

namespace terrace::cli {

// All checks are made at once. Checks that read tensors are made by the first rank of each machine.
WeightSource first_weights(const RunConfig& config, const Model& model);
// Adapters from one source, all other weights from another.
WeightSource with_adapters(const WeightSource& base, const WeightSource& adapters);

// What the user must know about the file: the values that it does not tell, positions that are dropped, a scaling of positions
// that terrace does not have, windows that are left out.
std::vector<std::string> warnings_of_init_from(const RunConfig& config, const Model& model);

// Of a run with new weights where a model's directory has the name of its family.
std::optional<std::string> warning_of_family(const RunConfig& config);

// The metadata with which --save tells the values that are in no tensor.
std::map<std::string, std::string> metadata_of_saved(const RunConfig& config);

}  // namespace terrace::cli
