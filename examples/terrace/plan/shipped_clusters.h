// The cluster profiles that are part of the program (examples/clusters), so that --cluster-profile accepts their names in any
// folder.
//
// Threads: any; constant.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace terrace::cli {

std::optional<std::string_view> shipped_cluster(std::string_view name);  // its TOML text
std::vector<std::string_view> shipped_clusters();                        // their names

}  // namespace terrace::cli
