// A group of one. On streams of the host it is a group of threads with one thread, which reads its own buffers. On streams of a
// GPU the bytes are in GPU memory: exchanges are copies, and the fold of one contribution is a conversion.
#include <string>
#include <utility>

#include <terrace/core/base/error.h>
#include <terrace/core/math/math.h>
#include <terrace/parallel/comm/communicator.h>

namespace terrace {
namespace {

void copy(Stream& stream, comm::ConstBytes from, comm::Bytes to) {
  if (from.data() != to.data() && !to.empty()) stream.copy(to.data(), from.data(), to.size());
}

void fold_one(Stream& stream, const comm::Reduction& r, comm::ConstBytes from, comm::Bytes to) {
  if (to.empty()) return;
  auto* const data = const_cast<std::byte*>(from.data());
  const auto elements = static_cast<std::int64_t>(to.size() / size_of(r.to));
  const TensorView sum{to.data(), r.to, {elements}};
  if (!r.onto && !r.blocks && r.from == r.to) return copy(stream, from, to);
  if (r.blocks && !r.onto)
    return stream.device().math().unpack_block8(stream, sum,
                                                {data, DType::i32, {elements / math::kBlock8Elements, math::kBlock8Words}});
  if (r.blocks || (r.onto && r.fold == comm::Fold::max))
    throw Error("one rank alone cannot fold a " + to_string(r) + " on a GPU", ErrorKind::refused);
  stream.device().math().convert(stream, sum, {data, r.from, {elements}}, r.onto ? Accumulate::yes : Accumulate::no);
}

class SelfCommunicator final : public Communicator {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }
  [[nodiscard]] const std::string& name() const override { return host_->name(); }
  [[nodiscard]] const comm::Machines& machines() const override { return host_->machines(); }
  void issue(Stream& stream, comm::Call call) override {
    if (stream.device().computes_on_host()) return host_->issue(stream, std::move(call));
    switch (call.operation) {
      case comm::Operation::all_gather:
      case comm::Operation::all_to_all: return copy(stream, call.from.front(), call.to.front());
      case comm::Operation::reduce_scatter:
      case comm::Operation::all_reduce:
      case comm::Operation::reduce: return fold_one(stream, call.reduction, call.from.front(), call.to.front());
      case comm::Operation::broadcast:
      case comm::Operation::barrier: return;
      default: return host_->issue(stream, std::move(call));  // refuses it: there is no other rank
    }
  }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    return host_->split(color, key, name);
  }

 private:
  const std::unique_ptr<Communicator> host_ = std::move(make_thread_communicators(1).front());
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator() { return std::make_unique<SelfCommunicator>(); }

}  // namespace terrace
