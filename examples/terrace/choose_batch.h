// The micro-batches of a step beside a published model, where neither --batch-size nor --grad-accumulation is given: eight
// sequences in one micro-batch, or in smaller ones where that one does not fit, or fits only with recomputation or tiles and
// they are faster; and more micro-batches, up to 64 sequences, while a step moves bytes for longer than it computes.
//
// A model learns from its batches, so they are chosen once: a run that goes on keeps its own.
//
// Pure, but for the settings of a run that goes on, which it reads. Threads: any. Errors: those of make_model().
#pragma once

#include <cstdint>
#include <functional>

#include <terrace/core/machine.h>
#include <terrace/examples/terrace/run_config.h>

namespace terrace::cli {

// `sequences_of_an_epoch`: 0 if nothing is known of the data. It is asked only if more sequences a step would help.
RunConfig with_chosen_batch(RunConfig config, const MachineProfile& profile,
                            const std::function<std::uint64_t()>& sequences_of_an_epoch);

}  // namespace terrace::cli
