// Chooses the micro-batches of a step for a published model if neither --batch-size nor --grad-accumulation is given. It starts
// with eight sequences in one micro-batch. It takes smaller micro-batches if that one does not fit, or fits only with
// recomputation or tiles and the smaller ones are faster. It takes more micro-batches, up to 64 sequences, while a step moves
// bytes for longer than it computes.
//
// The batch decides what a model learns, so it is chosen once: a resumed run keeps its own.
//
// Pure, except that it reads the settings of a resumed run. Threads: any. Errors: those of make_model().
#pragma once

#include <cstdint>
#include <functional>

#include <terrace/core/machine/machine.h>
#include <terrace/examples/terrace/config/run_config.h>

namespace terrace::cli {

// `sequences_of_an_epoch` returns 0 if nothing is known of the data. It is called only if more sequences a step would help.
RunConfig with_chosen_batch(RunConfig config, const MachineProfile& profile,
                            const std::function<std::uint64_t()>& sequences_of_an_epoch);

}  // namespace terrace::cli
