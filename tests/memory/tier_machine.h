// A machine that executes the moves of residency, in any order that lanes and clocks allow, on pages that remember what was
// written to them. It tests the clocks: if an operation could see foreign bytes, or overwrite bytes in use, it does so here for
// some seed.
//
// It allows more reordering than a real machine: several operations of a lane may start as soon as their clocks have passed;
// only their completions are in order.
#pragma once

#include <cstdint>
#include <deque>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <terrace/memory/chunk.h>
#include <terrace/memory/tier.h>

namespace terrace {

class TierMachine {
 public:
  static constexpr std::uint64_t kNothing = 0;  // no version: the bytes are not read, or not written

  struct Span {
    Tier tier{};
    std::uint64_t offset = 0, bytes = 0;
    std::uint64_t sees = kNothing;    // the version that must be there before
    std::uint64_t leaves = kNothing;  // the version that is there afterwards
  };

  explicit TierMachine(std::uint64_t seed) : random_(seed) {}

  void submit(Lane lane, const Clock& after, std::vector<Span> spans) {
    lanes_[index(lane)].push_back({after, std::move(spans), false});
    ++submitted_[lane];
  }
  void submit(const Move& move, std::uint64_t version) {
    const Lane lane = lane_of(move.from, move.to);
    if (move.sequence != submitted_[lane] + 1) throw std::runtime_error("a move is out of sequence");
    submit(lane, move.after,
           {{move.from, move.from_offset, move.bytes, version, kNothing},
            {move.to, move.to_offset, move.bytes, kNothing, version}});
  }
  [[nodiscard]] const Clock& submitted() const { return submitted_; }

  // One random event: an operation starts, or the oldest of a lane ends.
  void step() {
    auto& lane = lanes_[random_() % kLanes];
    if (lane.empty()) return;
    if (lane.front().started && random_() % 2 == 0) return finish(lane);
    auto& operation = lane[random_() % std::min<std::size_t>(lane.size(), 4)];
    if (!operation.started && passed(operation.after)) start(operation);
  }

  void drain() {
    for (bool progress = true; progress;) {
      progress = false;
      for (auto& lane : lanes_) {
        while (!lane.empty() && (lane.front().started || passed(lane.front().after))) {
          if (!lane.front().started) start(lane.front());
          finish(lane);
          progress = true;
        }
      }
    }
    for (std::size_t l = 0; l < kLanes; ++l) {
      if (!lanes_[l].empty()) {
        throw std::runtime_error(
            fmt::format("deadlock: operation {} of lane {} waits for ever", done_.at[l] + 1, name_of(static_cast<Lane>(l))));
      }
    }
  }

  // Puts bytes from outside into a tier; the machine must be idle.
  void put(Tier tier, std::uint64_t offset, std::uint64_t bytes, std::uint64_t version) {
    each_page({tier, offset, bytes, kNothing, version}, [&](Page& page, std::uint64_t i) { page.token = token(version, i); });
  }
  void expect(Tier tier, std::uint64_t offset, std::uint64_t bytes, std::uint64_t version) {
    const Span span{tier, offset, bytes, version, kNothing};
    each_page(span, [&](Page& page, std::uint64_t i) { look(page, span, i); });
  }

 private:
  struct Page {
    std::uint64_t token = 0;
    std::uint32_t readers = 0;
    bool writing = false;
  };
  struct Operation {
    Clock after;
    std::vector<Span> spans;
    bool started = false;
  };

  static std::uint64_t token(std::uint64_t version, std::uint64_t page) { return version * 16 + page; }

  template <class F>
  void each_page(const Span& span, F&& f) {
    auto& pages = pages_[span.tier];
    const auto first = span.offset / kPageBytes, count = span.bytes / kPageBytes;
    if (pages.size() < first + count) pages.resize(first + count);
    for (std::uint64_t i = 0; i < count; ++i) f(pages[first + i], i);
  }
  static void look(const Page& page, const Span& span, std::uint64_t i) {
    if (page.writing)
      throw std::runtime_error(fmt::format("{} bytes at {} are read while they are written", name_of(span.tier), span.offset));
    if (page.token != token(span.sees, i)) {
      throw std::runtime_error(fmt::format("{} bytes at {}: version {} expected, version {} (page {}) found",
                                           name_of(span.tier), span.offset, span.sees, page.token / 16, page.token % 16));
    }
  }
  [[nodiscard]] bool passed(const Clock& after) const {
    for (std::size_t l = 0; l < kLanes; ++l) {
      if (done_.at[l] < after.at[l]) return false;
    }
    return true;
  }
  void start(Operation& operation) {
    operation.started = true;
    for (const auto& span : operation.spans) {
      each_page(span, [&](Page& page, std::uint64_t i) {
        if (span.sees != kNothing) look(page, span, i);
        if (span.leaves == kNothing) {
          ++page.readers;
          return;
        }
        if (page.writing || page.readers > 0) {
          throw std::runtime_error(fmt::format("{} bytes at {} are overwritten while in use", name_of(span.tier), span.offset));
        }
        page.writing = true;
        page.token = 0;
      });
    }
  }
  void finish(std::deque<Operation>& lane) {
    for (const auto& span : lane.front().spans) {
      each_page(span, [&](Page& page, std::uint64_t i) {
        if (span.leaves == kNothing) {
          --page.readers;
        } else {
          page.writing = false;
          page.token = token(span.leaves, i);
        }
      });
    }
    lane.pop_front();
    ++done_.at[static_cast<std::size_t>(&lane - lanes_.data())];
  }

  std::mt19937_64 random_;
  std::array<std::deque<Operation>, kLanes> lanes_;
  Clock submitted_, done_;
  PerTier<std::vector<Page>> pages_;
};

}  // namespace terrace
