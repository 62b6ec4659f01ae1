// terrace ckpt export RUN DIR: writes the committed weights of a run as a directory of Hugging Face's library. For a run with
// adapters, writes only these as a directory of PEFT's, or the model with the adapters merged in.
//
// Weights are read from the stores of all ranks, whatever the layout, a few MiB at a time. Files appear complete or not at all,
// config.json last. Until then the directory has a mark, and the command can be repeated; a directory that has files and no
// mark is refused.
//
// Threads: one.
// Errors:  Error(ErrorKind::refused) for a model that the library does not have, and for a directory with other files; those of
//          CommittedState.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include <terrace/core/math/dtype.h>
#include <terrace/parallel/model/layer.h>
#include <terrace/parallel/state/committed_state.h>

namespace terrace::cli {

inline constexpr std::uint64_t kMostFileBytes = 5'000'000'000;  // where the library begins the next file

enum class Adapted : std::uint8_t { alone, merged };
// `given`: the paths of --nvme-path, for stores_of_run().
void export_model(const std::filesystem::path& run, std::span<const std::filesystem::path> given,
                  const std::filesystem::path& to, Adapted adapted = Adapted::alone);

// Writes only the files of weights, with the tensors of the layers. `model` selects what of the state is written.
void write_committed_weights(state::CommittedState& state, const Model& model, DType dtype, const std::filesystem::path& to);

}  // namespace terrace::cli
