#include <terrace/memory/learned_order.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace terrace::memory {
namespace {

// How far ahead a request is looked for: what a loop leaves out now and then (a frozen layer, an expert) is shorter.
constexpr std::uint64_t kReach = 32;
// By how many requests others may be overtaken before they are given up: as many as threads that request at the same time.
constexpr std::uint64_t kOvertaking = 8;

bool same(const LearnedOrder::Request& a, const LearnedOrder::Request& b) {
  return a.tier == b.tier && std::ranges::equal(a.uses, b.uses, [](const Use& x, const Use& y) {
           return x.chunk == y.chunk && x.access == y.access;
         });
}

}  // namespace

void LearnedOrder::begin_pass(const std::string& loop) {
  if (loop != loop_) {
    others_[loop_] = std::exchange(known_, {});
    loop_ = loop;
    if (auto found = others_.extract(loop)) known_ = std::move(found.mapped());
  }
  recorded_.clear();
  in_pass_ = as_known_ = last_was_found_ = true;
  jump(0);
}

bool LearnedOrder::end_pass() {
  if (!in_pass_) throw std::logic_error("LearnedOrder: a pass ends that was not begun");
  in_pass_ = false;
  const bool changed = !as_known_ || recorded_.size() != known_.size();
  if (changed) known_ = std::exchange(recorded_, {});
  jump(0);  // the next pass is expected to be like this one
  return changed;
}

void LearnedOrder::requested(std::span<const Use> uses, Tier tier) {
  if (!in_pass_) return;
  recorded_.push_back({tier, {uses.begin(), uses.end()}});
  const auto& request = recorded_.back();
  const auto place = recorded_.size() - 1;
  as_known_ = as_known_ && place < known_.size() && same(known_[place], request);
  follow(request);
}

// A request that is not near may be new, or the loop continues elsewhere. It does if the request before was not near either and
// the program has both in a row.
void LearnedOrder::follow(const Request& request) {
  const bool found = comes_near(request);
  const bool was_found = std::exchange(last_was_found_, found);
  if (found || was_found) return;
  const auto& before = recorded_[recorded_.size() - 2];
  for (std::uint64_t i = 0; i < known_.size(); ++i) {
    const auto at = (position_ + i) % known_.size();
    if (at == 0 || !same(known_[at], request) || !same(known_[at - 1], before)) continue;
    last_was_found_ = true;
    return jump(at + 1);
  }
}

bool LearnedOrder::comes_near(const Request& request) {
  const auto end = std::min<std::uint64_t>(position_ + kReach, known_.size());
  auto at = position_;
  while (at < end && (came_[at] || !same(known_[at], request))) ++at;
  if (at >= end) return false;
  came_[at] = true;
  farthest_ = std::max(farthest_, at + 1);
  while (position_ < farthest_ && (came_[position_] || farthest_ - position_ > kOvertaking)) ++position_;
  return true;
}

void LearnedOrder::jump(std::uint64_t to) {
  came_.assign(known_.size(), false);
  position_ = farthest_ = to;
}

void LearnedOrder::offer_coming(const std::function<bool(const Request&)>& wants_more) const {
  for (std::uint64_t i = 0; i < known_.size(); ++i) {
    const auto at = position_ + i;
    const bool next_pass = at >= known_.size();
    if (!next_pass && came_[at]) continue;
    if (!wants_more(known_[next_pass ? at - known_.size() : at])) return;
  }
}

}  // namespace terrace::memory
