// The folder of a store as `terrace ckpt rm` sees it: it may be damaged, so only the names of its files prove that it is one.
//
// Threads: any.
// Errors:  Error with the folder: ErrorKind::corrupt if it has anything that is not a file of a store; a store in use is
//          refused.
#pragma once

#include <filesystem>
#include <string>

#include <terrace/core/base/log.h>

namespace terrace::store {

// data, lock, commit.0, index.12.json, …, their copies, and the temporary files that a killed run leaves.
bool is_store_file(const std::string& name);

// Removes the files of the store and then its folder, and nothing else.
void remove_store(const std::filesystem::path& folder, const Log& log = {});

}  // namespace terrace::store
