// Math by kernels: the stream (a CudaStream) of a call issues the operation of ops.h. The Backend defines launches, matrix
// products and attention:
//
//   auto launcher(const char* operation, CudaStreamHandle, const Workspace&);  // launcher.h
//   void matmul(Stream&, const Workspace&, c, a, ta, b, tb, bias, accumulate);
//   void matmul_float8(Stream&, const Workspace&, c, a, b, a_scale, b_scale, bias, accumulate);
//   bool has_float8() const;
//   void attention(const auto& launcher, shape, out, lse, qkv);  // issues it by the kernels that it chooses
//   void attention_grad(const auto& launcher, shape, dqkv, dout, out, lse, qkv);
//   std::string algorithms() const;
//   cudnn::Attention& cudnn();  // optional: it may compute attention instead of our kernels
//
// Owner:   the device. Threads, errors: as Math; a token or target outside the vocabulary poisons the stream, as on the CPU.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <terrace/core/cuda/cudnn/attention.h>
#include <terrace/core/cuda/math/ops.h>
#include <terrace/core/cuda/stream.h>
#include <terrace/core/cuda/workspace.h>
#include <terrace/core/math/math_call.h>
#include <terrace/core/math/stream_rooms.h>

namespace terrace::cuda {

template <class Backend>
class KernelMath final : public Math, public math::StreamRooms {
 public:
  template <class... Args>
  explicit KernelMath(Device& device, Args&&... args)
      : backend_(std::forward<Args>(args)...), workspaces_(device, room_bytes()) {}

  void enqueue(Stream& stream, const math::MathCall& some) override {
    math::visit(some, [&](const auto& call) { this->issue(stream, call); });
  }

  bool has_float8() const override { return backend_.has_float8(); }
  std::string algorithms() const override { return backend_.algorithms(); }
  void make_rooms(std::span<Stream* const> streams) override { workspaces_.make(streams); }

 private:
  static constexpr bool kMayUseCudnn = requires(Backend & backend) { backend.cudnn(); };
  std::size_t room_bytes() {
    if constexpr (kMayUseCudnn) return backend_.cudnn().room_bytes();
    return 0;
  }

  template <class Call>
  void issue(Stream& stream, const Call& call) {
    launch(Call::kName, stream, [call](const auto& launcher) { ops::issue(launcher, call); });
    expect_valid_indices(stream, call);
  }
  void issue(Stream& stream, const math::CallOf<&Math::matmul>& call) {
    call.apply([&](const auto&... of) { backend_.matmul(stream, workspaces_.of(cuda_stream(stream)), of...); });
  }
  void issue(Stream& stream, const math::CallOf<&Math::matmul_float8>& call) {
    call.apply([&](const auto&... of) { backend_.matmul_float8(stream, workspaces_.of(cuda_stream(stream)), of...); });
  }
  void issue(Stream& stream, const math::CallOf<&Math::attention>& call) {
    const auto& [shape, out, lse, qkv] = call.arguments;
    attend(call, stream, {.shape = shape, .out = out, .lse = lse, .qkv = qkv},
           [this](const auto&... of) { backend_.attention(of...); });
  }
  void issue(Stream& stream, const math::CallOf<&Math::attention_grad>& call) {
    const auto& [shape, dqkv, dout, out, lse, qkv] = call.arguments;
    attend(call, stream, {.gradient = true, .shape = shape, .out = out, .lse = lse, .qkv = qkv, .dqkv = dqkv, .dout = dout},
           [this](const auto&... of) { backend_.attention_grad(of...); });
  }

  // cuDNN computes the attention, or `kernels(launcher, arguments...)` does.
  template <class Call, class Kernels>
  void attend(const Call& call, Stream& stream, const cudnn::AttentionCall& of_cudnn, Kernels kernels) {
    const auto issue = [call, kernels](const auto& launcher) {
      call.apply([&](const auto&... of) { kernels(launcher, of...); });
    };
    if constexpr (kMayUseCudnn) {
      cuda_stream(stream).launch(
          [this, of_cudnn, issue, workspace = workspaces_.of(cuda_stream(stream))](CudaStreamHandle handle) {
            backend_.cudnn().run(of_cudnn, handle, workspace.room,
                                 [&] { issue(backend_.launcher(Call::kName, handle, workspace)); });
          });
    } else {
      launch(Call::kName, stream, issue);
    }
  }

  template <class Issue>
  void launch(const char* operation, Stream& stream, Issue issue) {
    cuda_stream(stream).launch([this, operation, workspace = workspaces_.of(cuda_stream(stream)), issue = std::move(issue)](
                                   CudaStreamHandle handle) { issue(backend_.launcher(operation, handle, workspace)); });
  }

  // Tokens and targets are checked when the kernels have ended. Until then, the rows of invalid indices are NaN.
  template <class Call>
  void expect_valid_indices(Stream&, const Call&) {}
  void expect_valid_indices(Stream& stream, const math::CallOf<&Math::embed>& call) {
    const auto& [y, tokens, table, positions, seq, first_position] = call.arguments;
    expect_no_fault(stream, Fault::token, "embed: token", table.shape[0]);
  }
  void expect_valid_indices(Stream& stream, const math::CallOf<&Math::embed_grad>& call) {
    const auto& dtable = std::get<0>(call.arguments);
    expect_no_fault(stream, Fault::token, "embed: token", dtable.shape[0]);
  }
  void expect_valid_indices(Stream& stream, const math::CallOf<&Math::cross_entropy>& call) {
    const auto& [loss, dlogits, logits, targets, scale] = call.arguments;
    expect_no_fault(stream, Fault::target, "cross_entropy: target", columns_of(logits));
  }
  void expect_valid_indices(Stream& stream, const math::CallOf<&Math::cross_entropy_part>& call) {
    const auto& [loss, dlogits, logits, targets, lse, scale] = call.arguments;
    expect_no_fault(stream, Fault::target, "cross_entropy_part: target", columns_of(logits));
  }

  void expect_no_fault(Stream& stream, Fault fault, const char* what, std::int64_t vocabulary) {
    cuda_stream(stream).expect([word = workspaces_.of(cuda_stream(stream)).fault(fault), what, vocabulary] {
      const FaultWord found = std::exchange(*static_cast<volatile FaultWord*>(word), FaultWord{0});
      if (found == 0) return;
      throw std::out_of_range(std::string(what) + " " + std::to_string(fault_value(found)) + " at " +
                              std::to_string(fault_place(found)) + " is outside a vocabulary of " + std::to_string(vocabulary));
    });
  }

  Backend backend_;
  StreamWorkspaces workspaces_;
};

}  // namespace terrace::cuda
