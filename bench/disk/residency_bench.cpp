#include <terrace/bench/disk/residency_bench.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <sstream>

#include <fmt/format.h>

#include <terrace/core/base/refused.h>
#include <terrace/core/base/units.h>
#include <terrace/memory/eviction.h>

namespace terrace::bench {
namespace {

class Replay {
 public:
  Replay(const AccessTrace& trace, Tier tier, std::uint64_t capacity_bytes, std::string_view policy)
      : trace_(trace), tier_(tier), free_bytes_(capacity_bytes), chunks_(trace.chunk_bytes.size()) {
    if (policy == "belady") policy_ = &belady_;
    std::vector<memory::Belady::UseAt> uses;
    for (std::uint64_t i = 0; i < trace.actions.size(); ++i)
      for (const auto& use : counted(trace.actions[i])) uses.push_back({use.chunk, tier, i});
    belady_.set_program(uses, trace.actions.size());
  }

  Replayed once() {
    counts_ = {};
    for (std::uint64_t i = 0; i < trace_.actions.size(); ++i) {
      belady_.set_position(i);
      act(trace_.actions[i]);
    }
    return counts_;
  }

 private:
  struct Chunk {
    bool here = false, dirty = false, pinned = false;
  };

  // On the host, every action counts, because chunks on their way to the device pass through the host.
  [[nodiscard]] std::span<const Use> counted(const AccessTrace::Action& action) const {
    return tier_ == Tier::host || action.tier == tier_ ? std::span(action.uses) : std::span<const Use>();
  }
  [[nodiscard]] std::uint64_t bytes_of(ChunkId c) const { return trace_.chunk_bytes[index(c)]; }

  void act(const AccessTrace::Action& action) {
    const auto uses = counted(action);
    for (const auto& use : uses) chunks_[index(use.chunk)].pinned = true;
    for (const auto& use : uses) {
      auto& chunk = chunks_[index(use.chunk)];
      if (needs_content(use.access)) {
        ++counts_.accesses;
        if (chunk.here)
          ++counts_.hits;
        else
          counts_.read_bytes += bytes_of(use.chunk);
      }
      if (!chunk.here) take_room(use.chunk);
      chunk.dirty |= writes(use.access);
      policy_->used(use.chunk, tier_);
    }
    for (const auto& use : uses) chunks_[index(use.chunk)].pinned = false;
    for (const auto dead : action.dead) leave(dead);
  }

  void take_room(ChunkId incoming) {
    const auto bytes = bytes_of(incoming);
    while (free_bytes_ < bytes) {
      std::vector<ChunkId> evictable;
      for (const auto c : resident_)
        if (!chunks_[index(c)].pinned) evictable.push_back(c);
      if (evictable.empty())
        throw Error(fmt::format("an action of the trace does not fit: it needs {} more at once\n  give a larger --memory",
                                format_bytes(bytes - free_bytes_)),
                    ErrorKind::does_not_fit);
      const auto victim = policy_->victim(tier_, evictable);
      if (chunks_[index(victim)].dirty) counts_.write_bytes += bytes_of(victim);
      leave(victim);
    }
    free_bytes_ -= bytes;
    chunks_[index(incoming)].here = true;
    resident_.push_back(incoming);
  }

  void leave(ChunkId c) {
    auto& chunk = chunks_[index(c)];
    if (!chunk.here) return;
    free_bytes_ += bytes_of(c);
    chunk.here = chunk.dirty = false;
    std::erase(resident_, c);
  }

  const AccessTrace& trace_;
  const Tier tier_;
  std::uint64_t free_bytes_;
  std::vector<Chunk> chunks_;
  std::vector<ChunkId> resident_;
  memory::Lru lru_;
  memory::Belady belady_;
  memory::EvictionPolicy* policy_ = &lru_;
  Replayed counts_;
};

class ResidencyBench final : public Bench {
 public:
  explicit ResidencyBench(std::function<AccessTrace()> of_plan) : of_plan_(std::move(of_plan)) {}
  std::string_view name() const override { return "residency"; }
  std::string_view help() const override {
    return "eviction policies on a planned step or a recorded trace: hits, bytes moved";
  }
  std::vector<Flag> flags() override {
    return {{"trace", &trace_, "replay this recorded trace instead of a plan"},
            {"record", &record_, "write the planned step's accesses as a trace"},
            {"tier", &tier_, "whose chunks", 1, 1, {"device", "host"}},
            {"memory", &memory_bytes_, "of the tier; 4KiB: a quarter, half and three quarters of the bytes used"}};
  }

  void run(Session& session) override {
    // Renumbered like a recorded trace, so that unused chunks are left out and ties are the same.
    const auto trace = trace_.empty() ? parse_trace(to_text(of_plan_())) : read();
    if (!record_.empty()) write(trace);
    const auto used_bytes = std::accumulate(trace.chunk_bytes.begin(), trace.chunk_bytes.end(), std::uint64_t{0});
    session.note(fmt::format("{} actions on {} chunks, {} in all", trace.actions.size(), trace.chunk_bytes.size(),
                             format_bytes(used_bytes)));
    std::vector<std::uint64_t> memories{memory_bytes_};
    if (memory_bytes_ == kPageBytes) memories = {used_bytes / 4, used_bytes / 2, used_bytes / 4 * 3};
    const auto tier = tier_ == "device" ? Tier::device : Tier::host;
    for (const auto memory_bytes : memories) {
      try {
        for (const auto policy : kPolicies) report(session, policy, memory_bytes, replay(trace, tier, memory_bytes, policy));
      } catch (const Error& error) {
        // If several sizes are tried, the smallest may be too small; if only one size was requested, this is an error.
        if (memories.size() == 1) throw;
        session.note(fmt::format("{} is too small: {}", format_bytes(memory_bytes), error.what()));
      }
    }
  }

 private:
  void report(Session& session, std::string_view policy, std::uint64_t memory_bytes, const Replayed& r) const {
    session.result({{"policy", policy},
                    {"tier", tier_},
                    {"memory_bytes", memory_bytes},
                    {"accesses", r.accesses},
                    {"hits", r.hits},
                    {"hit_rate", r.accesses ? static_cast<double>(r.hits) / static_cast<double>(r.accesses) : 1.0},
                    {"read_bytes", r.read_bytes},
                    {"write_bytes", r.write_bytes},
                    {"runs", 1},  // nothing is timed: every run would give the same counts
                    {"spread", 0.0}});
  }
  [[nodiscard]] AccessTrace read() const {
    std::ifstream in(trace_);
    std::ostringstream text;
    if (in) text << in.rdbuf();
    if (!in || text.str().empty())
      throw base::Refused(
          fmt::format("--trace: \"{}\" cannot be read\n  record one: terrace bench residency --record FILE", trace_.string()));
    return parse_trace(text.str());
  }
  void write(const AccessTrace& trace) const {
    std::ofstream out(record_);
    out << to_text(trace);
    out.close();
    if (!out) throw Error(fmt::format("--record: \"{}\" cannot be written\n  give another file", record_.string()));
  }

  std::function<AccessTrace()> of_plan_;
  std::filesystem::path trace_, record_;
  std::string tier_ = "device";
  std::uint64_t memory_bytes_ = kPageBytes;
};

}  // namespace

Replayed replay(const AccessTrace& trace, Tier tier, std::uint64_t capacity_bytes, std::string_view policy) {
  Replay replay(trace, tier, capacity_bytes, policy);
  replay.once();
  return replay.once();
}

std::unique_ptr<Bench> make_residency_bench(std::function<AccessTrace()> of_plan) {
  return std::make_unique<ResidencyBench>(std::move(of_plan));
}

}  // namespace terrace::bench
