#include <terrace/parallel/comm/agree.h>

namespace terrace {
namespace {

Bytes bytes_of(std::vector<double>& numbers) {
  return {reinterpret_cast<std::byte*>(numbers.data()), numbers.size() * sizeof(double)};
}

}  // namespace

Agreement::Agreement(Communicator& ranks, Device& host) : ranks_(ranks), stream_(host.make_stream("agreement")) {}

double Agreement::max(double mine) {
  std::vector<double> number{mine};
  ranks_.all_reduce(*stream_, Reduction::max(DType::fp64), bytes_of(number), bytes_of(number));
  stream_->synchronize();
  return number.front();
}

std::vector<double> Agreement::each(double mine) {
  std::vector<double> number{mine}, all(static_cast<std::size_t>(ranks_.size()));
  ranks_.all_gather(*stream_, bytes_of(number), bytes_of(all));
  stream_->synchronize();
  return all;
}

void Agreement::barrier() {
  ranks_.barrier(*stream_);
  stream_->synchronize();
}

}  // namespace terrace
