// Attention in bf16 by cuDNN, if requested. A call whose workspace does not fit into the room is divided into calls for fewer
// sequences and groups of heads; the division depends only on the shape. Whether cuDNN or our kernels compute an attention is
// decided once for its shape: by the user, by a record, or by timing. The decision affects the bits, so it is kept and recorded
// as text.
//
// Owner:   the math. Memory belongs to the caller.
// Threads: run() on streams' issuing threads, where the device is current; lines() from any.
// Errors:  Error with the attention and cuDNN's reason; Error(ErrorKind::missing) if cuDNN is needed and missing.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <terrace/core/cuda/cudnn/attention_graph.h>
#include <terrace/core/cuda/cudnn/attention_record.h>
#include <terrace/core/device/cuda.h>

namespace terrace::cuda::cudnn {

enum class Use { never, always, where_faster };
Use parse_use(const std::string& text);  // "own", "cudnn" or "faster"; empty: own. Error(ErrorKind::refused) for anything else

struct AttentionOptions {
  Use use = Use::never;
  std::string run = {}, machine = {};  // Math::algorithms() of the run's earlier part, and of the machine's profile
  std::string library = kLibrary;
  std::size_t room_bytes = kCudnnRoomBytes;
  // Returns how long the GPU works on what `issue` issues on the stream, in nanoseconds.
  std::function<double(void* stream, const std::function<void()>& issue)> time_ns = {};
};

struct AttentionCall {
  bool gradient = false;
  AttentionShape shape = {};
  TensorView out = {}, lse = {}, qkv = {}, dqkv = {}, dout = {};
};

class Attention {
 public:
  explicit Attention(AttentionOptions options);
  ~Attention();
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  // Bytes of device memory that run() needs for a stream; 0: cuDNN is not used.
  [[nodiscard]] std::size_t room_bytes() const { return library_ ? options_.room_bytes : 0; }
  // Issues the call on the stream, by cuDNN or by `ours`.
  void run(const AttentionCall& call, void* stream, std::byte* room, const std::function<void()>& ours);
  [[nodiscard]] std::string lines() const;  // for Math::algorithms()

 private:
  struct Prepared;
  struct Decision {
    std::shared_ptr<const Prepared> theirs = {};  // null: ours
    std::string text = {};
  };
  Decision decide(const AttentionCall& call, void* stream, std::byte* room, const std::function<void()>& ours);
  std::shared_ptr<const Prepared> prepare(const AttentionCall& call, const EngineChoice* choice, std::string& why);
  Decision by_clock(const AttentionCall& call, std::shared_ptr<const Prepared> theirs, void* stream, std::byte* room,
                    const std::function<void()>& ours);
  void issue(const Prepared& prepared, const AttentionCall& call, void* stream, std::byte* room);
  [[nodiscard]] std::string describe(const Prepared& prepared) const;
  void* handle();

  const AttentionOptions options_;
  const AttentionRecord run_, machine_;
  std::optional<Library> library_;
  mutable std::mutex mutex_;
  void* handle_ = nullptr;  // made on an issuing thread, where the device is current
  std::map<std::string, Decision> decided_;
};

}  // namespace terrace::cuda::cudnn
