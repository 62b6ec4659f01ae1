// Proves that all ranks of a pipeline reach the end of their programs: every send has a receive, the receives of a lane are
// posted in the order of its sends, and no ranks wait for each other in a circle.
//
// The proof assumes that a send blocks its rank until the receive is posted, as if the next action needed the memory that is
// sent, and that the first use of a received buffer waits for the message. So it is valid however memory is reused and however
// fast the ranks are.
//
// Pure. Threads: any. Errors: Error(ErrorKind::refused) with the send and the receive that do not match, or with the circle.
#pragma once

#include <span>

#include <terrace/parallel/model/skips.h>
#include <terrace/parallel/program/program.h>

namespace terrace::passes {

// One program for each rank of the pipeline, in rank order, all of the same data rank.
void check_messages(std::span<const Program> ranks, const model::Skips& skips = {});

}  // namespace terrace::passes
