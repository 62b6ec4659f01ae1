#include <terrace/parallel/comm/nccl/launch_order.h>

#include <algorithm>

namespace terrace::comm {

LaunchOrder::Turn::Turn(LaunchOrder& order, int blocks) : order_(order), blocks_(std::min(blocks, order.blocks_)) {
  const std::lock_guard lock(order_.mutex_);
  number_ = ++order_.clock_ << kRankBits | static_cast<std::uint64_t>(order_.rank_);
  order_.waiting_.insert(number_);
}

void LaunchOrder::Turn::agree(std::uint64_t greatest) {
  {
    const std::lock_guard lock(order_.mutex_);
    order_.clock_ = std::max(order_.clock_, greatest >> kRankBits);
    order_.waiting_.erase(number_);
    order_.waiting_.insert(number_ = greatest);
  }
  order_.changed_.notify_all();
}

void LaunchOrder::Turn::take() {
  std::unique_lock lock(order_.mutex_);
  order_.changed_.wait(lock, [&] { return *order_.waiting_.begin() == number_ && order_.free_ >= blocks_; });
  order_.free_ -= blocks_;
  taken_ = true;
}

void LaunchOrder::Turn::pass() {
  {
    const std::lock_guard lock(order_.mutex_);
    order_.waiting_.erase(number_);
    passed_ = true;
  }
  order_.changed_.notify_all();
}

LaunchOrder::Turn::~Turn() {
  {
    const std::lock_guard lock(order_.mutex_);
    if (!passed_) order_.waiting_.erase(number_);
    if (taken_) order_.free_ += blocks_;
  }
  order_.changed_.notify_all();
}

}  // namespace terrace::comm
