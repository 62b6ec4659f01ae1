#include <terrace/core/cuda/cudnn/attention.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <terrace/core/base/error.h>

namespace terrace::cuda::cudnn {
namespace {

constexpr std::size_t kBlock = 256;  // bytes; the workspace begins at a multiple of it, after the space for Δ

std::size_t blocks(std::size_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }

// Calls that our own kernels compute on tensor cores; cuDNN is tried only for these. It is not tried for documents: they have
// very many lengths, and each would need its own plan and record.
bool is_served(const AttentionCall& call) {
  constexpr std::array<std::int64_t, 4> kDims{32, 64, 96, 128};
  return call.qkv.dtype == DType::bf16 && std::ranges::find(kDims, call.shape.head_dim) != kDims.end() &&
         call.shape.batch > 0 && call.shape.seq > 0 && !call.shape.one_of_many && call.shape.scores.cap == 0;
}

void demand_alignment(const AttentionCall& call) {
  for (const auto& view : {call.out, call.qkv, call.dqkv, call.dout}) {
    if (reinterpret_cast<std::uintptr_t>(view.data) % Graph::kAligned != 0)
      throw std::logic_error("attention: a tensor " + to_string(view.shape) + " is not aligned to 16 bytes");
  }
}

AttentionKey part_of(const AttentionCall& call, std::int64_t batch, std::int64_t groups) {
  const auto& s = call.shape;
  return {.gradient = call.gradient,
          .batch = batch,
          .seq = s.seq,
          .heads = s.heads / s.kv_heads * groups,
          .kv_heads = groups,
          .head_dim = s.head_dim,
          .all_heads = s.heads,
          .all_kv_heads = s.kv_heads};
}

std::vector<std::int64_t> divisors_descending(std::int64_t n) {
  std::vector<std::int64_t> all;
  for (std::int64_t d = n; d >= 1; --d)
    if (n % d == 0) all.push_back(d);
  return all;
}

// The ways to divide a call into equal ones, the largest first: fewer sequences, then one sequence and fewer groups of heads.
std::vector<AttentionKey> parts_of(const AttentionCall& call) {
  std::vector<AttentionKey> parts;
  for (const auto batch : divisors_descending(call.shape.batch)) parts.push_back(part_of(call, batch, call.shape.kv_heads));
  for (const auto groups : divisors_descending(call.shape.kv_heads))
    if (groups < call.shape.kv_heads) parts.push_back(part_of(call, 1, groups));
  return parts;
}

// Every usable engine of the gradient needs at least this much, because it stores the scores.
bool can_fit(const AttentionKey& key, std::size_t room_bytes) {
  return !key.gradient || score_bytes(key) + blocks(inner_bytes(key)) <= room_bytes;
}

template <class Element>
void* at(const TensorView& view, std::int64_t element) {
  return view.empty() ? nullptr : view.data + element * static_cast<std::int64_t>(sizeof(Element));
}

}  // namespace

// The plan for the equal calls into which a call is divided.
struct Attention::Prepared {
  AttentionKey key;
  Graph objects;
  Descriptor graph;
  Plan plan;
  std::int64_t calls = 0;
};

Use parse_use(const std::string& text) {
  if (text.empty() || text == "own") return Use::never;
  if (text == "cudnn") return Use::always;
  if (text == "faster") return Use::where_faster;
  throw Error(fmt::format("`attention`={}: unknown value; use own, cudnn or faster", text), ErrorKind::refused);
}

Attention::Attention(AttentionOptions options)
    : options_(std::move(options)),
      run_(options_.run),
      machine_(options_.use == Use::never ? "" : options_.machine, "the list \"algorithms\" of the machine profile") {
  const bool recorded = run_.names_cudnn();
  if (options_.use == Use::never && !recorded) return;
  std::string why;
  library_ = load_library(why, options_.library);
  if (library_ || (options_.use == Use::where_faster && !recorded)) return;
  throw Error(
      fmt::format("cuDNN, which {}, cannot be loaded: {}\n  install cuDNN 9, or {}",
                  recorded ? "this run's attention uses" : "`attention`=cudnn requires", why,
                  recorded ? "remove the run's algorithms.txt to choose again, which changes bits" : "unset `attention`"),
      ErrorKind::missing);
}

Attention::~Attention() {
  decided_.clear();
  if (handle_) library_->destroy_handle(handle_);
}

void* Attention::handle() {
  if (!handle_) library_->check(library_->create_handle(&handle_), "cudnnCreate");
  return handle_;
}

void Attention::run(const AttentionCall& call, void* stream, std::byte* room, const std::function<void()>& ours) {
  if (!library_ || !is_served(call)) return ours();
  demand_alignment(call);
  const std::lock_guard lock(mutex_);
  const auto name = name_of(call.shape, call.gradient);
  auto at = decided_.find(name);
  try {
    if (at == decided_.end()) at = decided_.emplace(name, decide(call, stream, room, ours)).first;
    if (at->second.theirs) return issue(*at->second.theirs, call, stream, room);
  } catch (const Error& error) {
    throw Error(fmt::format("attention {}: {}", name, error.what()), error);
  }
  ours();
}

Attention::Decision Attention::decide(const AttentionCall& call, void* stream, std::byte* room,
                                      const std::function<void()>& ours) {
  const auto name = name_of(call.shape, call.gradient);
  const auto* recorded = run_.of(name);
  const auto* machine = recorded ? nullptr : machine_.of(name);
  if (machine && machine->version != library_->version()) machine = nullptr;
  if (const auto* known = recorded ? recorded : machine; known && !known->choice)
    return {.text = "by our kernels; as recorded"};
  if (!recorded && options_.use == Use::never) return {.text = "by our kernels"};

  std::string why;
  std::shared_ptr<const Prepared> theirs;
  if (machine) theirs = prepare(call, &*machine->choice, why);
  if (theirs) {
    auto text = describe(*theirs);
    return {.theirs = std::move(theirs), .text = std::move(text)};
  }
  why.clear();  // the profile is from another GPU: choose again
  theirs = prepare(call, recorded ? &*recorded->choice : nullptr, why);
  if (theirs && !recorded && options_.use == Use::where_faster) return by_clock(call, std::move(theirs), stream, room, ours);
  if (theirs) {
    auto text = describe(*theirs);
    return {.theirs = std::move(theirs), .text = std::move(text)};
  }
  if (recorded)
    throw Error(
        fmt::format("cuDNN {} rejects the engine that is recorded for this attention:{}\n  remove the run's algorithms.txt "
                    "to choose again, which changes bits",
                    library_->version(), why));
  // The sequence is too long for the room. This depends only on the shape, so it must not end a run.
  if (why.empty())
    return {.text = fmt::format("by our kernels; cuDNN would write down {} bytes of scores for one group of heads",
                                score_bytes(part_of(call, 1, 1)))};
  if (options_.use == Use::where_faster) return {.text = "by our kernels; cuDNN has no engine for it"};
  throw Error(
      fmt::format("cuDNN {} has no engine for this attention that sums in one order within {} bytes:{}\n  unset "
                  "`attention`",
                  library_->version(), options_.room_bytes, why));
}

// Times our own kernel and cuDNN's, each three times in turn, after both have run once; every run overwrites the results.
Attention::Decision Attention::by_clock(const AttentionCall& call, std::shared_ptr<const Prepared> theirs, void* stream,
                                        std::byte* room, const std::function<void()>& ours) {
  const auto cudnn = [&] { issue(*theirs, call, stream, room); };
  ours(), cudnn();
  double ours_ns = std::numeric_limits<double>::infinity(), theirs_ns = ours_ns;
  constexpr int kRounds = 3;
  for (int i = 0; i < kRounds; ++i) {
    ours_ns = std::min(ours_ns, options_.time_ns(stream, ours));
    theirs_ns = std::min(theirs_ns, options_.time_ns(stream, cudnn));
  }
  const auto times = fmt::format("{:.0f} us, our kernels {:.0f} us", theirs_ns * 1e-3, ours_ns * 1e-3);
  if (theirs_ns < ours_ns) {
    auto text = fmt::format("{}, {}", describe(*theirs), times);
    return {.theirs = std::move(theirs), .text = std::move(text)};
  }
  return {.text = fmt::format("by our kernels; cuDNN {} with {} takes {}", library_->version(), to_string(theirs->plan.choice),
                              times)};
}

std::shared_ptr<const Attention::Prepared> Attention::prepare(const AttentionCall& call, const EngineChoice* choice,
                                                              std::string& why) {
  for (const auto& key : parts_of(call)) {
    if (!can_fit(key, options_.room_bytes)) continue;
    auto objects = attention_graph(*library_, key);
    auto graph = objects.finish(handle());
    const PlanLimits limits{.least_workspace_bytes = key.gradient ? score_bytes(key) : 0,
                            .most_workspace_bytes = options_.room_bytes - blocks(inner_bytes(key))};
    auto plan = choice ? make_plan(graph, {.handle = handle()}, limits, *choice, why)
                       : propose_plan(graph, {.handle = handle()}, limits, why);
    if (!plan) continue;
    const auto calls = call.shape.batch / key.batch * (call.shape.kv_heads / key.kv_heads);
    return std::make_shared<const Prepared>(Prepared{key, std::move(objects), std::move(graph), std::move(*plan), calls});
  }
  return nullptr;
}

std::string Attention::describe(const Prepared& p) const {
  return fmt::format("by cuDNN {}, {}; {} call{} with {} bytes of workspace", library_->version(), to_string(p.plan.choice),
                     p.calls, p.calls == 1 ? "" : "s", p.plan.workspace_bytes);
}

void Attention::issue(const Prepared& prepared, const AttentionCall& call, void* stream, std::byte* room) {
  const auto& [key, objects, graph, plan, calls] = prepared;
  const auto& s = call.shape;
  library_->check(library_->set_stream(handle(), stream), "cudnnSetStream");
  float scale = static_cast<float>(s.scores.factor(s.head_dim));
  float hidden = -std::numeric_limits<float>::infinity(), one = 1;
  const std::int64_t per_group = s.heads / s.kv_heads, row = (s.heads + 2 * s.kv_heads) * s.head_dim;
  for (std::int64_t batch = 0; batch < s.batch; batch += key.batch) {
    for (std::int64_t group = 0; group < s.kv_heads; group += key.kv_heads) {
      const auto head = group * per_group;
      const auto q = batch * s.seq * row + head * s.head_dim;
      const auto k = batch * s.seq * row + (s.heads + group) * s.head_dim, v = k + s.kv_heads * s.head_dim;
      const auto out = (batch * s.seq * s.heads + head) * s.head_dim;
      std::vector<std::int64_t> ids;
      std::vector<void*> pointers;
      const auto give = [&](Place place, void* pointer) {
        ids.push_back(static_cast<std::int64_t>(place));
        pointers.push_back(pointer);
      };
      give(Place::q, at<bf16>(call.qkv, q)), give(Place::k, at<bf16>(call.qkv, k)), give(Place::v, at<bf16>(call.qkv, v));
      give(Place::out, at<bf16>(call.out, out)), give(Place::lse, at<float>(call.lse, (batch * s.heads + head) * s.seq));
      give(Place::scale, &scale), give(Place::hidden, &hidden);
      if (call.gradient) {
        give(Place::dout, at<bf16>(call.dout, out));
        give(Place::dq, at<bf16>(call.dqkv, q)), give(Place::dk, at<bf16>(call.dqkv, k)),
            give(Place::dv, at<bf16>(call.dqkv, v));
        give(Place::inner, room), give(Place::one, &one);
      }
      void* workspace = room + blocks(inner_bytes(key));
      Descriptor pack(*library_, Kind::variant_pack);
      pack.set(Name::pack_ids, ids)
          .set(Name::pack_pointers, Type::pointer, static_cast<std::int64_t>(pointers.size()), pointers.data())
          .set(Name::pack_workspace, Type::pointer, 1, &workspace)
          .finalize();
      library_->check(library_->execute(handle(), plan.plan.object(), pack.object()), "cudnnBackendExecute");
    }
  }
}

std::string Attention::lines() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const auto& [name, decision] : decided_) text += fmt::format("attention {}: {}\n", name, decision.text);
  return text;
}

}  // namespace terrace::cuda::cudnn
