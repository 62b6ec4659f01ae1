// The choice for an attention as text: the lines of Math::algorithms() that begin with "attention". A run uses its recorded
// choices again, and a new run begins with those of the machine profile, as for matrix products (recorded_algorithms.h).
//
//   attention [batch 8, seq 4096, 32 heads, 8 kv heads, dim 128] gradient: by cuDNN 9.19.0, engine 6, knobs 24=26; 16 calls …
//   attention [batch 8, seq 65536, 32 heads, 8 kv heads, dim 128] gradient: by our kernels; …
//
// Owner, threads: values. Errors: Error(ErrorKind::corrupt) that names the line.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <terrace/core/cuda/cudnn/plan.h>
#include <terrace/core/math/math.h>

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
