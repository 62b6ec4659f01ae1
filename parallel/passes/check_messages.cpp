#include <terrace/parallel/passes/check_messages.h>

#include <fmt/format.h>

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include <terrace/core/base/error.h>

namespace terrace::passes {
namespace {

using LaneKey = std::tuple<std::uint32_t, std::uint32_t, Payload>;  // source, destination
using Content = std::tuple<Payload, std::uint32_t, std::uint32_t>;  // layer, micro-batch or group
Content content_of(const Action& a) { return {a.payload, a.layer, is_per_micro_batch(a.payload) ? a.micro_batch : a.chunk}; }

class Ranks {
 public:
  Ranks(std::span<const Program> programs, const model::Skips& skips)
      : programs_(programs),
        skips_(skips),
        at_(programs.size()),
        verdicts_(programs.size()),
        behind_(programs.size()),
        awaited_(programs.size()) {
    for (std::uint32_t rank = 0; rank < programs.size(); ++rank)
      for (const auto& a : programs[rank].actions)
        if (a.op == Op::reduce) reducers_[a.layer].insert(rank);
  }

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::uint32_t rank = 0; rank < at_.size(); ++rank)
        while (advance(rank)) moved = true;
    }
    for (std::uint32_t rank = 0; rank < at_.size(); ++rank)
      if (at_[rank] < programs_[rank].actions.size()) throw_circle(rank);
    for (const auto& [lane, asked] : asked_)
      if (!asked.empty())
        throw Error(fmt::format("rank {} receives a message that rank {} never sends: {}", std::get<1>(lane), std::get<0>(lane),
                                to_text(asked.front())),
                    ErrorKind::refused);
  }

 private:
  [[nodiscard]] const Action& next(std::uint32_t rank) const { return programs_[rank].actions[at_[rank]]; }

  bool advance(std::uint32_t rank) {
    if (at_[rank] == programs_[rank].actions.size()) return false;
    const auto& a = next(rank);
    if (is_message(a.op) && a.peer >= at_.size())
      throw Error(fmt::format("rank {}: {}: there are only {} ranks", rank, to_text(a), at_.size()), ErrorKind::refused);
    if (a.op == Op::verdict) verdicts_[rank] = a.update + 1;
    if (a.op == Op::gather || a.op == Op::reduce) behind_[rank][{a.op, a.layer}] = verdicts_[rank];
    if (reduces_with_others(a)) return reduce_together(a);
    if (a.op == Op::receive) {
      asked_[{a.peer, rank, a.payload}].push_back(a);
      awaited_[rank].insert({content_of(a), a.peer});
    } else if (waits_for(rank)) {
      return false;
    } else if (a.op == Op::send) {
      auto& asked = asked_[{rank, a.peer, a.payload}];
      if (content_of(asked.front()) != content_of(a))
        throw Error(fmt::format("rank {} and rank {} disagree on their next message: {} meets {}", rank, a.peer, to_text(a),
                                to_text(asked.front())),
                    ErrorKind::refused);
      asked.pop_front();
      awaited_[a.peer].erase({content_of(a), rank});
    }
    ++at_[rank];
    return true;
  }

  // True if several ranks of the pipeline take part in the reduction. A reduction between data ranks is in only one of the
  // programs.
  [[nodiscard]] bool reduces_with_others(const Action& a) const {
    return a.op == Op::reduce && reducers_.at(a.layer).size() > 1;
  }
  // A rank that has not reached the reduction yet.
  [[nodiscard]] std::optional<std::uint32_t> absent_from(const Action& reduce) const {
    for (const auto rank : reducers_.at(reduce.layer))
      if (at_[rank] == programs_[rank].actions.size() || next(rank) != reduce) return rank;
    return std::nullopt;
  }
  bool reduce_together(const Action& a) {
    if (absent_from(a)) return false;
    for (const auto rank : reducers_.at(a.layer)) ++at_[rank];
    return true;
  }

  // The rank for which a rank's next action waits.
  [[nodiscard]] std::optional<std::uint32_t> waits_for(std::uint32_t rank) const {
    const auto& a = next(rank);
    if (reduces_with_others(a)) return absent_from(a);
    if (a.op == Op::send) {
      const auto asked = asked_.find({rank, a.peer, a.payload});
      if (asked == asked_.end() || asked->second.empty()) return a.peer;
      return std::nullopt;
    }
    if (a.op == Op::update && verdicts_[rank] > a.update)
      if (const auto other = short_of(a.update + 1)) return other;
    const auto source = [&](const Content& content) -> std::optional<std::uint32_t> {
      const auto first = awaited_[rank].lower_bound({content, 0});
      if (first == awaited_[rank].end() || first->first != content) return std::nullopt;
      return first->second;
    };
    if (const auto other = short_of(verdicts_before(rank, a))) return other;
    const bool backward = is_backward(a.op);
    if (is_layer_action(a.op)) {
      if (const auto from = source({Payload::activation, a.layer, a.micro_batch})) return from;
      if (const auto k = skips_.into(a.layer); k != model::Skips::kNone && a.op != Op::backward_weight)
        if (const auto from = source({Payload::activation, k, a.micro_batch})) return from;
      if (backward)
        if (const auto from = source({Payload::gradient, a.layer + 1, a.micro_batch})) return from;
    }
    // The norm waits for the tied gradient. (New weights need no check: their sender does not wait.)
    for (const auto& [content, from] : awaited_[rank])
      if (std::get<0>(content) == Payload::tied_gradient && a.op == Op::norm && std::get<1>(content) == a.layer) return from;
    return std::nullopt;
  }

  // A rank that has run fewer than this many verdicts.
  [[nodiscard]] std::optional<std::uint32_t> short_of(std::uint32_t verdicts) const {
    for (std::uint32_t other = 0; other < verdicts_.size(); ++other)
      if (verdicts_[other] < verdicts) return other;
    return std::nullopt;
  }
  // A verdict is an exchange of all ranks. Later gathers and reductions on a rank's communication stream wait for it, and so do
  // the actions that use their results.
  [[nodiscard]] std::uint32_t verdicts_before(std::uint32_t rank, const Action& a) const {
    const auto behind = behind_[rank].find({a.op == Op::norm ? Op::reduce : Op::gather, a.layer});
    const bool wants = is_layer_action(a.op) || a.op == Op::norm;
    return wants && behind != behind_[rank].end() ? behind->second : 0;
  }

  [[noreturn]] void throw_circle(std::uint32_t rank) const {
    std::string text = "the ranks wait for one another:";
    std::set<std::uint32_t> seen;
    while (seen.insert(rank).second) {
      if (at_[rank] == programs_[rank].actions.size()) {
        text += fmt::format("\n  rank {} has reached the end of its program", rank);
        break;
      }
      const auto other = waits_for(rank);
      text +=
          fmt::format("\n  rank {} at action {}, {}, waits for rank {}", rank, at_[rank], to_text(next(rank)), other.value());
      rank = *other;
    }
    throw Error(text, ErrorKind::refused);
  }

  std::span<const Program> programs_;
  const model::Skips& skips_;
  std::vector<std::size_t> at_;
  std::vector<std::uint32_t> verdicts_;  // [rank]: how many verdicts it has run
  // [rank]: how many verdicts it had run when it last gathered a layer's weights, or reduced its gradient.
  std::vector<std::map<std::pair<Op, std::uint32_t>, std::uint32_t>> behind_;
  // [rank]: posted receives whose message has not arrived, with the source. (Two ranks may each send a part of a gradient.)
  std::vector<std::set<std::pair<Content, std::uint32_t>>> awaited_;
  std::map<std::uint32_t, std::set<std::uint32_t>> reducers_;  // [layer]: the ranks whose programs reduce its gradient
  std::map<LaneKey, std::deque<Action>> asked_;                // posted receives without a matching send yet
};

}  // namespace

void check_messages(std::span<const Program> ranks, const model::Skips& skips) { Ranks(ranks, skips).run(); }

}  // namespace terrace::passes
