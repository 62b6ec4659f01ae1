#include <terrace/parallel/comm/agree.h>

namespace terrace {
namespace {

comm::Bytes bytes_of(std::vector<double>& numbers) {
  return {reinterpret_cast<std::byte*>(numbers.data()), numbers.size() * sizeof(double)};
}

}  // namespace

Agreement::Agreement(Communicator& ranks, Device& host) : ranks_(ranks), stream_(host.make_stream("agreement")) {}

double Agreement::max(double mine) {
  std::vector<double> number{mine};
  ranks_.issue(*stream_, {.operation = comm::Operation::all_reduce,
                          .reduction = comm::Reduction::max(DType::fp64),
                          .from = {bytes_of(number)},
                          .to = {bytes_of(number)},
                          .patient = true});
  stream_->synchronize();
  return number.front();
}

std::vector<double> Agreement::each(double mine) {
  std::vector<double> number{mine}, all(static_cast<std::size_t>(ranks_.size()));
  ranks_.issue(*stream_,
               {.operation = comm::Operation::all_gather, .from = {bytes_of(number)}, .to = {bytes_of(all)}, .patient = true});
  stream_->synchronize();
  return all;
}

std::string Agreement::of_first(std::string mine) {
  mine.resize(static_cast<std::size_t>(each(static_cast<double>(mine.size())).front()));
  if (mine.empty()) return mine;
  const comm::Bytes bytes{reinterpret_cast<std::byte*>(mine.data()), mine.size()};
  ranks_.issue(*stream_, {.operation = comm::Operation::broadcast, .from = {bytes}, .to = {bytes}, .peer = 0, .patient = true});
  stream_->synchronize();
  return mine;
}

void Agreement::barrier() {
  ranks_.issue(*stream_, {.operation = comm::Operation::barrier, .patient = true});
  stream_->synchronize();
}

}  // namespace terrace
