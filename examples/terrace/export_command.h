// terrace ckpt export RUN DIR: the committed weights of a run as a directory of Hugging Face's library; of a run with adapters,
// those alone as a directory of PEFT's, or merged into the model.
//
// Weights are read from the stores of all ranks, whatever the layout, a few MiB at a time. Files appear complete or not at all,
// and config.json is the last one. Until then a mark stands in the directory, and the command can be repeated; a directory
// with files and without the mark is refused.
//
// Threads: one.
// Errors:  Error(Exit::usage) for a model that the library does not have, and for a directory with other files; those of
//          CommittedState.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include <terrace/core/dtype.h>
#include <terrace/parallel/committed_state.h>
#include <terrace/parallel/layer.h>

namespace terrace::cli {

inline constexpr std::uint64_t kMostFileBytes = 5'000'000'000;  // as the library cuts

enum class Adapted : std::uint8_t { alone, merged };
// `given`: for stores_of_run().
void export_model(const std::filesystem::path& run, std::span<const std::filesystem::path> given,
                  const std::filesystem::path& to, Adapted adapted = Adapted::alone);

// The files of weights alone, as layers read them. `model`: what of the state is written.
void write_committed_weights(CommittedState& state, const Model& model, DType dtype, const std::filesystem::path& to);

}  // namespace terrace::cli
