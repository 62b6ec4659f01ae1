// The faults of the simulated engine do what their names say, and a power loss removes bytes that were not synced.
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>

#include <terrace/offload/io/io_engine.h>
#include <terrace/tests/doubles/simulated_disk.h>

#include <terrace/tests/offload/pages.h>

namespace terrace {
namespace {

using namespace std::chrono_literals;
using What = SimulatedFault::What;
constexpr std::uint64_t kBytes = 8 * kPageBytes;

// Writes known content from page 4 on (request 0), reads it back (request 1), and returns both results.
struct Outcome {
  int write_error = -1, read_error = -1;
  test::Pages written{kBytes}, read{kBytes};
  std::shared_ptr<SimulatedDisk> disk = make_simulated_disk(1, 4 * kBytes);
  [[nodiscard]] bool same() const { return std::memcmp(written.data(), read.data(), kBytes) == 0; }
};
int run(IoEngine& engine, IoRequest::Op op, std::byte* buffer) {
  int result = -1;
  IoRequest request{op, 0, 4 * kPageBytes, buffer, kBytes, [&](IoRequest&, int error_number) { result = error_number; }};
  IoRequest* const one = &request;
  engine.submit({&one, 1});
  for (int i = 0; i < 1000 && result < 0; ++i) engine.poll(0ns);
  return result;
}
Outcome with(std::vector<SimulatedFault> faults) {
  Outcome outcome;
  test::fill_random(outcome.written.span(), 5);
  const auto engine = make_simulated_engine(outcome.disk, 11, std::move(faults));
  outcome.write_error = run(*engine, IoRequest::Op::write, outcome.written.data());
  outcome.read_error = run(*engine, IoRequest::Op::read, outcome.read.data());
  return outcome;
}

TEST(SimulatedDisk, WithoutFaultsReadsWhatWasWritten) { EXPECT_TRUE(with({}).same()); }

TEST(SimulatedDisk, AShortTransferIsInvisible) {
  const auto outcome = with({{0, What::short_transfer, 0}, {1, What::short_transfer, 0}});
  EXPECT_EQ(0, outcome.write_error);
  EXPECT_EQ(0, outcome.read_error);
  EXPECT_TRUE(outcome.same());
}

TEST(SimulatedDisk, ErrorsAndZeroLengthsEndTheRequest) {
  EXPECT_EQ(EIO, with({{0, What::error, EIO}}).write_error);
  EXPECT_EQ(EIO, with({{1, What::error, EIO}}).read_error);
  EXPECT_EQ(ENOSPC, with({{0, What::zero_length, 0}}).write_error);
  EXPECT_EQ(ENODATA, with({{1, What::zero_length, 0}}).read_error);
}

TEST(SimulatedDisk, SilentFaultsReportSuccessAndSpoilTheBytes) {
  for (const What what : {What::flip_bit, What::stale, What::misdirected, What::torn}) {
    for (const std::uint64_t request : {0U, 1U}) {
      const auto outcome = with({{request, what, 0}});
      EXPECT_EQ(0, outcome.write_error) << static_cast<int>(what);
      EXPECT_EQ(0, outcome.read_error) << static_cast<int>(what);
      EXPECT_FALSE(outcome.same()) << "fault " << static_cast<int>(what) << " at request " << request;
    }
  }
}

TEST(SimulatedDisk, ARequestThatNeverEndsStaysInFlight) {
  const auto engine = make_simulated_engine(make_simulated_disk(1, 4 * kBytes), 1, {{0, What::never, 0}});
  test::Pages buffer(kBytes);
  EXPECT_EQ(-1, run(*engine, IoRequest::Op::read, buffer.data()));
  EXPECT_EQ(1U, engine->in_flight());
}

TEST(SimulatedDisk, APowerLossLeavesWhatWasSynced) {
  auto outcome = with({});
  const auto is_there = [&] {
    return std::memcmp(outcome.disk->file(0).data() + 4 * kPageBytes, outcome.written.data(), kBytes) == 0;
  };
  outcome.disk->power_loss();
  EXPECT_FALSE(is_there());
  const auto engine = make_simulated_engine(outcome.disk, 2);
  run(*engine, IoRequest::Op::write, outcome.written.data());
  outcome.disk->sync();
  outcome.disk->power_loss();
  EXPECT_TRUE(is_there());
}

}  // namespace
}  // namespace terrace
