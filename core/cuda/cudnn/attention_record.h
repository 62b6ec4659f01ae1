// Who makes an attention, in words: the lines of Math::algorithms() that begin with "attention". What a run recorded it uses
// again, and what the machine's profile has a new run begins with, as with matrix products (recorded_algorithms.h).
//
//   attention [batch 8, seq 4096, 32 heads, 8 kv heads, dim 128] gradient: by cuDNN 9.19.0, engine 6, knobs 24=26; 16 calls …
//   attention [batch 8, seq 65536, 32 heads, 8 kv heads, dim 128] gradient: by our kernels; …
//
// Owner, threads: values. Errors: Error(Exit::corrupt) that names the line.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <terrace/core/cuda/cudnn/plan.h>
#include <terrace/core/math.h>

namespace terrace::cuda::cudnn {

// "[batch 8, seq 4096, 32 heads, 8 kv heads, dim 128] gradient"
std::string name_of(const AttentionShape& shape, bool gradient);

struct RecordedAttention {
  std::string version = {};                 // of cuDNN; empty: our kernels
  std::optional<EngineChoice> choice = {};  // cuDNN's
};

class AttentionRecord {
 public:
  explicit AttentionRecord(std::string_view text = {}, std::string_view where = "the run's algorithms.txt");
  [[nodiscard]] const RecordedAttention* of(const std::string& name) const;
  [[nodiscard]] bool names_cudnn() const;

 private:
  std::map<std::string, RecordedAttention, std::less<>> lines_;
};

}  // namespace terrace::cuda::cudnn
