#include <terrace/parallel/comm/canonical.h>

#include <fmt/format.h>

#include <terrace/core/error.h>

namespace terrace {

CanonicalFold::CanonicalFold(Communicator& data, int micro_batches, DType contribution, DType accumulator)
    : data_(data), micro_batches_(micro_batches), contribution_(contribution), accumulator_(accumulator) {
  const int ranks = data.size();
  if (micro_batches < 1 || micro_batches % ranks != 0) {
    const int below = micro_batches / ranks * ranks;
    throw Error(
        fmt::format("canonical reduction: {} data ranks do not divide {} micro-batches; the nearest that work are {}", ranks,
                    micro_batches, below > 0 ? fmt::format("{} and {}", below, below + ranks) : fmt::format("{}", ranks)),
        Exit::usage);
  }
  if (accumulator == DType::bf16 || !is_supported({contribution, accumulator, Fold::sum, true})) {
    throw Error(
        fmt::format("canonical reduction: {} contributions cannot be accumulated in {} without depending on the number of "
                    "data ranks; accumulate in fp32",
                    name_of(contribution), name_of(accumulator)),
        Exit::usage);
  }
}

void CanonicalFold::add(Stream& stream, int round, ConstBytes contribution, Bytes mine) {
  data_.reduce_scatter(stream, {.from = contribution_, .to = accumulator_, .onto = round > 0, .order = SumOrder::ranks},
                       contribution, mine);
}

}  // namespace terrace
