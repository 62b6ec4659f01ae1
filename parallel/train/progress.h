// The data that a commit holds in addition to the state, so that a resumed run continues with the same numbers. It is stored as
// JSON in the payload of the store's commit.
//
// Threads: values. Errors: Error(ErrorKind::corrupt) for a payload that no trainer wrote.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <terrace/memory/tier.h>
#include <terrace/optimizers/loss_scale.h>

namespace terrace::training {

struct Progress {
  std::uint64_t skipped_steps = 0;                  // without an update, since the run began
  PerTier<std::uint64_t> peak_bytes = {};           // of the run so far
  std::optional<LossScale::State> loss_scale = {};  // of a dynamic loss scale
};

std::string to_text(const Progress& progress);
Progress parse_progress(const std::string& text);

}  // namespace terrace::training
