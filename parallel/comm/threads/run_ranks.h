// Runs several ranks as threads of this process.
//
//   run_ranks(2, {}, [&](std::unique_ptr<Communicator> ranks) { … });
//
// Owner:   the caller; each body owns its communicator, and destroying it tells the others that this rank has left.
// Threads: blocks until all bodies have ended. Each body runs on its own thread.
// Errors:  rethrows the first error that is not a RankFailed: the others only follow from it. If a thread cannot be made, the
//          ranks that have begun see that the others have left, and end.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <terrace/parallel/comm/communicator.h>

namespace terrace {

using RankBody = std::function<void(std::unique_ptr<Communicator> ranks)>;
void run_ranks(int ranks, const CommunicatorOptions& options, const RankBody& body);
// For communicators that were made before, one for each rank.
void run_ranks(std::vector<std::unique_ptr<Communicator>> communicators, const RankBody& body);

}  // namespace terrace
