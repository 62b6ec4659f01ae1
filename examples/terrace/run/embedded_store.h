// The store of a program that embeds terrace (ChunkManager, OptimizerState), as `terrace ckpt` reads it: a store's folder
// itself, without a run around it.
//
// Threads: any. Errors: those of the file system.
#pragma once

#include <filesystem>
#include <optional>
#include <span>

#include <terrace/offload/store/chunk_store.h>

namespace terrace::cli {

// Nothing if the folder is no such store. `given`: the paths of a store that is striped over several (--nvme-path); the store's
// name is that of `folder`.
std::optional<ChunkStore::Options> embedded_store(const std::filesystem::path& folder,
                                                  std::span<const std::filesystem::path> given);

}  // namespace terrace::cli
