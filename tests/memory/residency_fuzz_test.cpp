#include <algorithm>
#include <memory>
#include <random>

#include <gtest/gtest.h>

#include <terrace/memory/learned_policy.h>
#include <terrace/memory/residency.h>
#include <terrace/tests/support/environment.h>

#include <terrace/tests/memory/tier_machine.h>

namespace terrace {
namespace {

constexpr std::uint64_t kDefaultOperations = TERRACE_DEFAULT_FUZZ_OPS;
constexpr std::uint64_t kOperationsPerSeed = 2'500;

std::uint64_t operations() { return test::number_from_environment("TERRACE_FUZZ_OPS", kDefaultOperations); }

// TERRACE_FUZZ_SEED selects other random runs than the default ones.
std::uint64_t first_seed() { return test::number_from_environment("TERRACE_FUZZ_SEED", 1); }

enum class Policy : std::uint8_t { lru, belady, learned };

// One random run of a residency, with a model of each chunk's content and a machine that executes its moves.
class Life {
 public:
  Life(std::uint64_t seed, Policy kind) : random_(seed), machine_(seed ^ 0x9e3779b97f4a7c15ULL) {
    const std::uint32_t runs = 3 + pick(8);
    std::uint32_t chunks = 0;
    struct Shape {
      std::uint32_t count;
      std::uint64_t bytes;
      ChunkKind kind;
    };
    std::vector<Shape> shapes;
    std::uint64_t largest_run = 0;
    for (std::uint32_t r = 0; r < runs; ++r) {
      shapes.push_back({1 + (pick(2) ? 0 : pick(5)), (1 + pick(3)) * kPageBytes, static_cast<ChunkKind>(pick(kChunkKinds))});
      chunks += shapes.back().count;
      largest_run = std::max(largest_run, shapes.back().count * shapes.back().bytes);
    }
    budget_.device = largest_run + pick(20) * kPageBytes;
    budget_.host = one_in(4) ? kUnlimited : one_in(12) ? 0 : (3 + pick(30)) * kPageBytes;
    budget_.disk = one_in(2) ? kUnlimited : one_in(3) ? 0 : pick(80) * kPageBytes;

    if (kind == Policy::belady) {
      auto policy = std::make_unique<memory::Belady>();
      std::vector<memory::Belady::UseAt> uses;
      for (std::uint64_t p = 0; p < kProgramLength; ++p) {
        for (std::uint64_t n = pick(4); n > 0; --n) {
          uses.push_back({ChunkId{pick(chunks)}, one_in(3) ? Tier::host : Tier::device, p});
        }
      }
      policy->set_program(uses, kProgramLength);
      belady_ = policy.get();
      policy_ = std::move(policy);
    } else if (kind == Policy::learned) {
      auto policy = std::make_unique<memory::LearnedPolicy>();
      learned_ = policy.get();
      learned_->begin_pass("");
      policy_ = std::move(policy);
    } else {
      policy_ = std::make_unique<memory::Lru>();
    }
    residency_ = std::make_unique<memory::Residency>(budget_, *policy_, 1 + pick(2));
    for (const auto& shape : shapes) {
      const bool high = shape.kind == ChunkKind::activation || one_in(8);
      const auto first = residency_->add_run(shape.count, shape.bytes, shape.kind, high ? memory::End::high : memory::End::low);
      for (std::uint32_t i = 0; i < shape.count; ++i) {
        run_of_.push_back({first, shape.count});
        version_.push_back(TierMachine::kNothing);
      }
    }
  }

  void act() {
    if (belady_) belady_->set_position(position_ = (position_ + pick(2)) % kProgramLength);
    moves_.clear();
    if (learned_ && one_in(40)) {
      learned_->end_pass();
      learned_->begin_pass(one_in(3) ? "other" : "");
    }
    switch (pick(16)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4: acquire(); break;
      case 5:
      case 6:
      case 7:
      case 8:
      case 9: release(); break;
      case 10:
      case 11:
      case 12: prefetch(); break;
      case 13: one_in(2) ? flush() : offload(); break;
      case 14: one_in(2) ? drop() : reserve(); break;
      default: one_in(3) ? adopt() : idle(); break;
    }
    carry_out();
    residency_->check();
    for (std::uint32_t c = 0; c < version_.size(); ++c) {
      demand(residency_->has_content(ChunkId{c}) == (version_[c] != TierMachine::kNothing), "content differs from the model");
    }
    demand(residency_->traffic() == traffic_, "traffic differs from the moves");
    for (auto n = pick(8); n > 0; --n) machine_.step();
  }

  void end() {
    while (!leases_.empty()) release();
    machine_.drain();
    see_disk();
  }

 private:
  static constexpr std::uint64_t kProgramLength = 60;
  struct Lease {
    std::vector<Use> uses;
    Tier tier;
    memory::Residency::Granted granted;
  };

  std::uint32_t pick(std::uint64_t below) { return static_cast<std::uint32_t>(random_() % below); }
  bool one_in(std::uint64_t n) { return pick(n) == 0; }
  static void demand(bool holds, const char* what) {
    if (!holds) throw std::runtime_error(what);
  }
  ChunkId any() { return ChunkId{pick(version_.size())}; }
  bool has_content(ChunkId c) const { return version_[index(c)] != TierMachine::kNothing; }
  bool leased(ChunkId c, bool to_write) const {
    return std::ranges::any_of(leases_, [&](const Lease& lease) {
      return std::ranges::any_of(lease.uses,
                                 [&](const Use& use) { return use.chunk == c && (!to_write || writes(use.access)); });
    });
  }
  Clock pace() {
    Clock clock;
    if (one_in(3))
      clock[Lane::compute] = machine_.submitted()[Lane::compute] - pick(machine_.submitted()[Lane::compute] + 1) / 8;
    return clock;
  }
  // Every move carries the version that its chunk has when the move is decided.
  void carry_out() {
    for (const auto& move : moves_) {
      traffic_.add(move);
      machine_.submit(move, version_[index(move.chunk)]);
    }
    moves_.clear();
  }

  void acquire() {
    if (leases_.size() >= 3) return;
    std::vector<Use> uses;
    const auto add = [&](ChunkId c) {
      if (leased(c, true) || std::ranges::count(uses, c, &Use::chunk) > 0) return;
      auto access = static_cast<Access>(pick(3));
      if (leased(c, false)) access = Access::read;
      if (!has_content(c)) access = Access::overwrite;
      uses.push_back({c, access});
    };
    for (auto n = 1 + pick(3); n > 0; --n) {
      const ChunkId c = any();
      if (one_in(2)) {
        const auto [first, count] = run_of_[index(c)];
        for (std::uint32_t i = 0; i < count; ++i) add(ChunkId{index(first) + i});
      } else {
        add(c);
      }
    }
    if (uses.size() == 1 && uses[0].access == Access::read && one_in(4)) uses.push_back(uses[0]);  // the same chunk used twice
    if (uses.empty()) return;
    const Tier tier = one_in(3) ? Tier::host : Tier::device;
    const bool must = leases_.empty() && legal(uses, tier);
    try {
      if (learned_) learned_->requested(uses, tier);
      auto granted = residency_->acquire(uses, tier, moves_);
      demand(granted.offsets.size() == uses.size(), "an offset a use");
      carry_out();
      for (std::size_t i = 0; i < uses.size(); ++i) {
        if (uses[i].access == Access::overwrite) version_[index(uses[i].chunk)] = ++versions_;  // decided now, written later
      }
      leases_.push_back({uses, tier, std::move(granted)});
    } catch (const memory::DoesNotFit& refusal) {
      demand(!must, "a legal request was refused");
      demand(refusal.missing_bytes > 0, "a refusal says how much is missing");
      carry_out();
      for (const auto& use : uses) {
        if (use.access == Access::overwrite && !residency_->has_content(use.chunk))
          version_[index(use.chunk)] = TierMachine::kNothing;
      }
    }
  }

  // True if the request must succeed: nothing is in use, the disk is unlimited, every chunk fits into the host, and the request
  // is within the budget.
  bool legal(const std::vector<Use>& uses, Tier tier) const {
    std::uint64_t bytes = 0, largest = 0;
    std::vector<std::uint32_t> units;
    for (std::uint32_t c = 0; c < version_.size(); ++c) largest = std::max(largest, residency_->bytes_of(ChunkId{c}));
    for (const auto& use : uses) {
      const auto [first, count] = run_of_[index(use.chunk)];
      const auto unit = tier == Tier::device ? index(first) : index(use.chunk);
      if (std::ranges::count(units, unit) > 0) continue;
      units.push_back(unit);
      bytes += residency_->bytes_of(use.chunk) * (tier == Tier::device ? count : 1);
    }
    return budget_.disk == kUnlimited && budget_.host >= largest && bytes <= budget_.of(tier);
  }

  void release() {
    if (leases_.empty()) return;
    const auto at = leases_.begin() + pick(leases_.size());
    const Lease lease = *at;
    leases_.erase(at);
    std::vector<TierMachine::Span> spans;
    for (std::size_t i = 0; i < lease.uses.size(); ++i) {
      const auto [chunk, access] = lease.uses[i];
      TierMachine::Span span{lease.tier, lease.granted.offsets[i], residency_->bytes_of(chunk), TierMachine::kNothing,
                             TierMachine::kNothing};
      auto& version = version_[index(chunk)];
      if (needs_content(access)) span.sees = version;
      if (access == Access::update) version = ++versions_;
      if (writes(access)) span.leaves = version;
      spans.push_back(span);
    }
    const Lane lane = one_in(3) ? Lane::update : Lane::compute;
    machine_.submit(lane, lease.granted.after, std::move(spans));
    residency_->release(lease.uses, lease.tier, Clock::after(lane, machine_.submitted()[lane]));
    for (const auto& use : lease.uses) {
      if (!writes(use.access)) continue;
      for (const Tier t : kAllTiers) demand(residency_->valid(use.chunk, t) == (t == lease.tier), "written: valid in one tier");
    }
  }

  void prefetch() {
    if (learned_ && one_in(2))
      return learned_->prefetch_coming(
          *residency_, pick(5), [this](ChunkId c) { return leased(c, true); }, moves_);
    const ChunkId c = any();
    const Tier tier = one_in(3) ? Tier::host : Tier::device;
    if (!residency_->has_content(c)) return place_ahead(c, tier);
    const bool there = residency_->prefetch(c, tier, moves_);
    demand(there == residency_->valid(c, tier), "a prefetch says whether it is there");
    demand(there || moves_.empty(), "a refused prefetch moves nothing");
  }
  void place_ahead(ChunkId c, Tier tier) {
    const auto taken = residency_->space(tier).reserved_bytes();
    const bool there = residency_->place_ahead(c, tier, moves_);
    demand(there || (moves_.empty() && taken == residency_->space(tier).reserved_bytes()), "a refused place moves nothing");
    demand(!residency_->has_content(c), "a place is no content");
  }
  void offload() {
    const ChunkId c = any();
    const bool gone = residency_->offload(c, moves_);
    const auto [first, count] = run_of_[index(c)];
    for (std::uint32_t i = 0; gone && i < count; ++i)
      demand(!residency_->valid(ChunkId{index(first) + i}, Tier::device), "offloaded: nothing of the run is on the device");
    bool in_use = false;
    for (std::uint32_t i = 0; i < count; ++i) in_use |= leased(ChunkId{index(first) + i}, false);
    demand(gone || in_use || budget_.host != kUnlimited, "what nobody uses goes where there is room");
  }
  void flush() {
    const ChunkId c = any();
    if (!has_content(c) || leased(c, true)) return;
    try {
      residency_->flush(c, pace(), moves_);
      demand(residency_->valid(c, Tier::disk), "flushed: valid on disk");
    } catch (const memory::DoesNotFit&) {
      demand(budget_.disk != kUnlimited || budget_.host != kUnlimited, "an unlimited tier is full");
    }
  }
  void drop() {
    const ChunkId c = any();
    if (leased(c, false)) return;
    residency_->drop(c);
    version_[index(c)] = TierMachine::kNothing;
  }
  void reserve() {
    try {
      residency_->reserve_on_disk(any());
    } catch (const memory::DoesNotFit& refusal) {
      demand(refusal.tier == Tier::disk && budget_.disk != kUnlimited, "only a full disk refuses");
    }
  }
  void adopt() {
    const ChunkId c = any();
    if (has_content(c) || leased(c, false)) return;
    machine_.drain();
    try {
      residency_->adopt_on_disk(c);
    } catch (const memory::DoesNotFit&) {
      return;
    }
    version_[index(c)] = ++versions_;
    machine_.put(Tier::disk, residency_->offset_on_disk(c), residency_->bytes_of(c), versions_);
  }
  void idle() {
    if (!one_in(8)) return;
    machine_.drain();
    see_disk();
  }
  void see_disk() {
    for (std::uint32_t i = 0; i < version_.size(); ++i) {
      const ChunkId c{i};
      if (!residency_->valid(c, Tier::disk)) continue;
      machine_.expect(Tier::disk, residency_->offset_on_disk(c), residency_->bytes_of(c), version_[i]);
    }
  }

  std::mt19937_64 random_;
  TierMachine machine_;
  Budget budget_;
  std::unique_ptr<memory::EvictionPolicy> policy_;
  memory::Belady* belady_ = nullptr;
  memory::LearnedPolicy* learned_ = nullptr;
  std::unique_ptr<memory::Residency> residency_;
  std::vector<std::pair<ChunkId, std::uint32_t>> run_of_;
  std::vector<std::uint64_t> version_;
  std::uint64_t versions_ = 0, position_ = 0;
  std::vector<Lease> leases_;
  std::vector<Move> moves_;
  memory::Traffic traffic_;
};

void live(Policy policy, std::uint64_t first) {
  const auto lives = std::max<std::uint64_t>(operations() / 3 / kOperationsPerSeed, 1);
  fmt::print("{} operations, seeds {} to {}\n", lives * kOperationsPerSeed, first, first + lives - 1);
  for (std::uint64_t seed = first; seed < first + lives; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::uint64_t operation = 0;
    try {
      Life life(seed, policy);
      for (; operation < kOperationsPerSeed; ++operation) life.act();
      life.end();
    } catch (const std::exception& e) {
      FAIL() << "operation " << operation << ": " << e.what();
    }
  }
}

TEST(ResidencyFuzz, EveryReadSeesTheLastWriteUnderLru) { live(Policy::lru, first_seed()); }
TEST(ResidencyFuzz, EveryReadSeesTheLastWriteUnderBelady) { live(Policy::belady, 1'000'000 + first_seed()); }
TEST(ResidencyFuzz, EveryReadSeesTheLastWriteUnderALearnedOrder) { live(Policy::learned, 2'000'000 + first_seed()); }

}  // namespace
}  // namespace terrace
