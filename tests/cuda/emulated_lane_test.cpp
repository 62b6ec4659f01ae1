// The emulator itself: its results, compared with plain loops and the layouts in the PTX ISA, and the errors that it detects.
#include <terrace/tests/support/gpu/emulated_lane.h>

#include <gmock/gmock.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <terrace/core/cuda/arithmetic.h>

#include <terrace/tests/cuda/random_matrices.h>

namespace terrace::test {
namespace {

using cuda::kWarp;

struct EmulatedLaneTest : RandomMatrices {};

std::string failure_of(const cuda::LaunchShape& shape, const std::function<void(EmulatedLane&)>& kernel) {
  try {
    emulate(shape, kernel);
  } catch (const EmulationError& e) {
    return e.what();
  }
  return "it ran";
}

// Sums over a block through shuffles and shared memory.
void block_sum(EmulatedLane& lane, const std::vector<int>& in, std::vector<int>& out) {
  int sum = in[static_cast<std::size_t>(lane.block_x() * lane.threads() + lane.thread())];
  for (int mask = kWarp / 2; mask > 0; mask /= 2) sum += lane.shuffle_xor(sum, mask);
  int* const sums = cuda::shared_as<int>(lane);
  if (lane.warp_lane() == 0) sums[lane.warp()] = sum;
  lane.sync();
  if (lane.thread() == 0) {
    int total = 0;
    for (int w = 0; w < lane.threads() / kWarp; ++w) total += sums[w];
    out[static_cast<std::size_t>(lane.block_x())] = total;
  }
}

TEST_F(EmulatedLaneTest, BlocksSumInEverySchedule) {
  std::vector<int> in(3 * 128);
  for (auto& x : in) x = std::uniform_int_distribution<int>(-1000, 1000)(random);
  for (const std::uint64_t schedule : {0, 1, 2, 3, 4}) {
    std::vector<int> out(3, -1);
    const auto counts = emulate(
        {.blocks = {3, 1, 1}, .threads = 128, .shared_bytes = 16}, [&](EmulatedLane& lane) { block_sum(lane, in, out); },
        schedule);
    for (std::size_t b = 0; b < 3; ++b) {
      int want = 0;
      for (std::size_t i = 0; i < 128; ++i) want += in[b * 128 + i];
      EXPECT_EQ(out[b], want) << "schedule " << schedule;
    }
    EXPECT_EQ(counts.barriers, 3);
  }
}

TEST_F(EmulatedLaneTest, GridCoordinatesCoverTheGrid) {
  std::vector<int> seen(2 * 3 * 4);
  emulate({.blocks = {2, 3, 4}, .threads = 32}, [&](EmulatedLane& lane) {
    EXPECT_EQ(lane.blocks_x(), 2);
    EXPECT_EQ(lane.blocks_y(), 3);
    if (lane.thread() == 31) ++seen[static_cast<std::size_t>((lane.block_z() * 3 + lane.block_y()) * 2 + lane.block_x())];
  });
  EXPECT_THAT(seen, testing::Each(1));
}

TEST_F(EmulatedLaneTest, ShufflesCarryFourAndEightBytes) {
  emulate({.threads = 64}, [](EmulatedLane& lane) {
    const double mine = lane.thread() + 0.5;
    EXPECT_EQ(lane.shuffle(mine, 7), lane.warp() * kWarp + 7.5);
    EXPECT_EQ(lane.shuffle(static_cast<float>(mine), lane.warp_lane() ^ 1), static_cast<float>((lane.thread() ^ 1) + 0.5));
    EXPECT_EQ(lane.shuffle_xor(mine, 16), (lane.thread() ^ 16) + 0.5);
  });
}

TEST_F(EmulatedLaneTest, AnyIsOfAWarp) {
  emulate({.threads = 64}, [](EmulatedLane& lane) {
    EXPECT_EQ(lane.any(lane.thread() == 40), lane.warp() == 1);
    EXPECT_FALSE(lane.any(false));
  });
}

TEST_F(EmulatedLaneTest, SharedMemoryIsNaNAtTheStartOfEveryBlock) {
  emulate({.blocks = {3, 1, 1}, .threads = 32, .shared_bytes = 32 * sizeof(double)}, [](EmulatedLane& lane) {
    const auto at = static_cast<std::size_t>(lane.thread());
    EXPECT_TRUE(std::isnan(cuda::shared_as<float>(lane)[at]));
    EXPECT_TRUE(std::isnan(cuda::shared_as<double>(lane)[at]));
    EXPECT_TRUE(std::isnan(cuda::widen(cuda::shared_as<bf16>(lane)[at])));
    lane.sync();
    cuda::shared_as<double>(lane)[at] = 1;
  });
}

TEST_F(EmulatedLaneTest, BarrierThatNotAllReachIsAnError) {
  EXPECT_THAT(failure_of({.threads = 64},
                         [](EmulatedLane& lane) {
                           if (lane.thread() < 32) lane.sync();
                         }),
              testing::HasSubstr("threads 0-31 wait at sync(), threads 32-63 have ended"));
  EXPECT_THAT(failure_of({.threads = 64}, [](EmulatedLane& lane) { lane.thread() < 40 ? lane.sync() : lane.sync_warp(); }),
              testing::HasSubstr("threads 0-39 wait at sync(), threads 40-63 wait at sync_warp()"));
}

TEST_F(EmulatedLaneTest, WarpOperationOfHalfAWarpIsAnError) {
  EXPECT_THAT(failure_of({.threads = 32},
                         [](EmulatedLane& lane) {
                           if (lane.thread() < 16) lane.shuffle_xor(1, 1);
                         }),
              testing::HasSubstr("threads 0-15 wait at a shuffle"));
  EXPECT_THAT(
      failure_of({.threads = 32}, [](EmulatedLane& lane) { lane.thread() < 16 ? void(lane.shuffle(1, 1)) : lane.sync_warp(); }),
      testing::HasSubstr("calls sync_warp() where others of its warp call a shuffle"));
}

TEST_F(EmulatedLaneTest, ExceptionsLeaveTheKernelAndTheNextLaunchRuns) {
  EXPECT_THROW(emulate({.threads = 64},
                       [](EmulatedLane& lane) {
                         if (lane.thread() == 33) throw std::out_of_range("of a kernel");
                         lane.sync();
                       }),
               std::out_of_range);
  EXPECT_EQ(failure_of({.threads = 64}, [](EmulatedLane& lane) { lane.sync(); }), "it ran");
}

TEST_F(EmulatedLaneTest, SomeScheduleShowsAMissingBarrier) {
  const auto reversed_right = [](std::uint64_t schedule) {
    bool right = true;
    emulate(
        {.threads = 64, .shared_bytes = 64 * sizeof(int)},
        [&](EmulatedLane& lane) {
          int* const s = cuda::shared_as<int>(lane);
          s[lane.thread()] = lane.thread();
          lane.sync_warp();  // should be sync()
          right = right && s[63 - lane.thread()] == 63 - lane.thread();
        },
        schedule);
    return right;
  };
  EXPECT_FALSE(reversed_right(0) && reversed_right(1));
}

TEST_F(EmulatedLaneTest, LaunchesOutsideTheHardwareAreErrors) {
  const auto nothing = [](EmulatedLane&) {};
  EXPECT_THAT(failure_of({.threads = 48}, nothing), testing::HasSubstr("48 threads"));
  EXPECT_THAT(failure_of({.threads = 2048}, nothing), testing::HasSubstr("2048 threads"));
  EXPECT_THAT(failure_of({.blocks = {1, 65536, 1}}, nothing), testing::HasSubstr("more blocks"));
  EXPECT_THAT(failure_of({.shared_bytes = 256 * 1024}, nothing), testing::HasSubstr("more shared memory"));
}

// Row r of matrix m; thread t receives two neighbours of row t / 4, from column t % 4 · 2.
TEST_F(EmulatedLaneTest, LoadsMatricesInTheDocumentedLayout) {
  const auto in = matrix(4 * 64);
  for (const bool transposed : {false, true}) {
    std::vector<std::array<std::uint32_t, 4>> got(kWarp);
    emulate({.threads = kWarp, .shared_bytes = 512}, [&](EmulatedLane& lane) {
      auto* const s = cuda::shared_as<bf16>(lane);
      for (std::size_t i = static_cast<std::size_t>(lane.thread()); i < in.size(); i += kWarp) s[i] = in[i];
      lane.sync();
      std::uint32_t r[4];
      const auto* const row = s + lane.thread() * 8;
      transposed ? lane.load_matrices_transposed(r, row) : lane.load_matrices(r, row);
      std::copy(r, r + 4, got[static_cast<std::size_t>(lane.thread())].begin());
    });
    for (std::size_t t = 0; t < kWarp; ++t) {
      for (std::size_t m = 0; m < 4; ++m) {
        for (std::size_t half = 0; half < 2; ++half) {
          const std::size_t major = t / 4, minor = t % 4 * 2 + half;
          const bf16 want = in[m * 64 + (transposed ? minor * 8 + major : major * 8 + minor)];
          EXPECT_EQ(static_cast<std::uint16_t>(got[t][m] >> (16 * half)), want.bits) << "thread " << t << ", matrix " << m;
        }
      }
    }
  }
}

TEST_F(EmulatedLaneTest, CountsPassesOfRowsThatShareBanks) {
  const auto conflicts = [](int stride_bytes) {
    return emulate({.threads = kWarp, .shared_bytes = 32 * 256},
                   [&](EmulatedLane& lane) {
                     std::uint32_t r[4];
                     lane.load_matrices(r, lane.shared() + lane.thread() * stride_bytes);
                   })
        .bank_conflicts;
  };
  EXPECT_EQ(conflicts(16), 0);
  EXPECT_EQ(conflicts(32), 4);       // two rows share each place, in each of four matrices
  EXPECT_EQ(conflicts(128), 4 * 7);  // all rows share one place
  EXPECT_EQ(conflicts(144), 0);
}

TEST_F(EmulatedLaneTest, AddressesOutsideSharedMemoryAreErrors) {
  std::uint32_t r[4];
  alignas(16) std::byte other[16] = {};
  const auto load = [&](const void* row) {
    return failure_of({.threads = kWarp, .shared_bytes = 64},
                      [&](EmulatedLane& lane) { lane.load_matrices(r, row == nullptr ? lane.shared() + 8 : row); });
  };
  EXPECT_THAT(load(other), testing::HasSubstr("not in shared memory"));
  EXPECT_THAT(load(nullptr), testing::HasSubstr("not aligned"));
  EXPECT_THAT(failure_of({.threads = kWarp, .shared_bytes = 64},
                         [&](EmulatedLane& lane) { lane.copy_async(lane.shared() + 56, other, true); }),
              testing::HasSubstr("copy_async()"));
}

// d = a · b, with every fragment written and read in the layout of the PTX ISA.
TEST_F(EmulatedLaneTest, MultipliesAsPlainLoops) {
  const auto a = matrix(16 * 16), b = matrix(16 * 8);
  std::vector<float> d(16 * 8);
  for (auto& x : d) x = std::uniform_real_distribution<float>(-2, 2)(random);
  auto got = d;
  const auto two = [](bf16 low, bf16 high) { return static_cast<std::uint32_t>(high.bits) << 16 | low.bits; };
  const auto counts = emulate({.threads = kWarp}, [&](EmulatedLane& lane) {
    const auto group = static_cast<std::size_t>(lane.thread() / 4), in_group = static_cast<std::size_t>(lane.thread() % 4);
    const auto a_at = [&](std::size_t row, std::size_t column) { return two(a[row * 16 + column], a[row * 16 + column + 1]); };
    const auto b_at = [&](std::size_t row) { return two(b[row * 8 + group], b[(row + 1) * 8 + group]); };
    const std::uint32_t fa[4] = {a_at(group, in_group * 2), a_at(group + 8, in_group * 2), a_at(group, in_group * 2 + 8),
                                 a_at(group + 8, in_group * 2 + 8)};
    auto* const row = &got[group * 8 + in_group * 2];
    auto* const lower = row + 64;
    float fd[4] = {row[0], row[1], lower[0], lower[1]};
    lane.multiply(fd, fa, b_at(in_group * 2), b_at(in_group * 2 + 8));
    row[0] = fd[0], row[1] = fd[1], lower[0] = fd[2], lower[1] = fd[3];
  });
  EXPECT_EQ(counts.matrix_products, 1);
  for (std::size_t i = 0; i < 16; ++i) {
    for (std::size_t j = 0; j < 8; ++j) {
      double want = d[i * 8 + j];
      for (std::size_t k = 0; k < 16; ++k)
        want += static_cast<double>(static_cast<float>(a[i * 16 + k])) * static_cast<float>(b[k * 8 + j]);
      EXPECT_NEAR(got[i * 8 + j], want, 1e-5) << i << ", " << j;
    }
  }
}

TEST_F(EmulatedLaneTest, AsynchronousCopiesArriveAtTheWaitOnly) {
  alignas(16) std::array<float, 12> from{};
  for (auto& x : from) x = std::uniform_real_distribution<float>(1, 2)(random);
  const auto counts = emulate({.threads = kWarp, .shared_bytes = 48}, [&](EmulatedLane& lane) {
    float* const s = cuda::shared_as<float>(lane);
    if (lane.thread() == 0) {
      std::fill(s, s + 12, 7.0F);
      lane.copy_async(s, from.data(), true);
      lane.commit_copies();
      lane.copy_async(s + 4, from.data() + 4, true);
      lane.copy_async(s + 8, nullptr, false);
      lane.commit_copies();
      for (int i = 0; i < 12; ++i) EXPECT_TRUE(std::isnan(s[i]));
      lane.wait_copies(cuda::Pending<1>{});
      for (int i = 0; i < 4; ++i) EXPECT_EQ(s[i], from[static_cast<std::size_t>(i)]);
      for (int i = 4; i < 12; ++i) EXPECT_TRUE(std::isnan(s[i]));
      lane.wait_copies(cuda::Pending<0>{});
      for (int i = 0; i < 12; ++i) EXPECT_EQ(s[i], i < 8 ? from[static_cast<std::size_t>(i)] : 0.0F);
    }
    lane.sync();
  });
  EXPECT_EQ(counts.asynchronous_copies, 3);
}

TEST_F(EmulatedLaneTest, NarrowsAsTheLibrarysOwnType) {
  for (int i = 0; i < 100000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    ASSERT_EQ(cuda::bf16_bits(x), bf16(x).bits) << x;
    const float back = static_cast<float>(bf16(x)), widened = cuda::widen(cuda::narrow<bf16>(x));
    ASSERT_TRUE(back == widened || std::isnan(back));
  }
}

}  // namespace
}  // namespace terrace::test
