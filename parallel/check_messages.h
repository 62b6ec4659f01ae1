// Proves that the ranks of a pipeline come to the ends of their programs together: every message has both ends, a lane's
// messages are asked for in the order in which they are sent, and no ranks wait for one another in a circle.
//
// Sends are taken to block their rank until they have been asked for, as if whatever comes next needed the place of what is
// sent; what was asked for is waited for by its first use. So the proof holds for every reuse of memory and for every speed.
//
// Pure. Threads: any. Errors: Error(Exit::usage) with the two ends that do not fit, or with the circle.
#pragma once

#include <span>

#include <terrace/parallel/program.h>
#include <terrace/parallel/skips.h>

namespace terrace {

// The same program of all ranks, by rank, of one data rank.
void check_messages(std::span<const Program> ranks, const Skips& skips = {});

}  // namespace terrace
