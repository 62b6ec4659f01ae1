// The emulated products of warpgroups: their results, from layouts documented in the PTX ISA, and the errors that they detect.
#include <terrace/tests/support/gpu/emulated_lane.h>

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <terrace/core/cuda/arithmetic.h>
#include <terrace/core/cuda/kernels/fragments.h>
#include <terrace/core/cuda/kernels/swizzled_tile.h>

#include <terrace/tests/cuda/random_matrices.h>

namespace terrace::test {
namespace {

using cuda::kWarp;
using cuda::MatrixDescriptor;
using cuda::Pending;
using cuda::Swizzle;

constexpr int kThreads = 4 * kWarp, kRows = 64, kDepth = 16;  // of a product

struct EmulatedProductsTest : RandomMatrices {};

std::byte* aligned_shared(EmulatedLane& lane) {
  return lane.shared() + (-lane.shared_address(lane.shared()) & (cuda::kSwizzleAlignment - 1));
}

// Copies pieces of 16 bytes into shared memory, in the order of `from`, and makes them visible to products.
void place(EmulatedLane& lane, std::byte* base, const std::vector<bf16>& from, const std::vector<std::size_t>& to_bytes) {
  for (std::size_t i = static_cast<std::size_t>(lane.thread()); i < to_bytes.size(); i += kThreads)
    lane.copy_async(base + to_bytes[i], from.data() + i * 8, true);
  lane.commit_copies();
  lane.wait_copies(Pending<0>{});
  lane.fence_shared();
}

// a · b with b[column][k], in fp64.
std::vector<double> product(const std::vector<bf16>& a, const std::vector<bf16>& b, int columns) {
  std::vector<double> d;
  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::size_t column = 0; column < static_cast<std::size_t>(columns); ++column) {
      double sum = 0;
      for (std::size_t k = 0; k < kDepth; ++k)
        sum += static_cast<double>(cuda::widen(a[row * kDepth + k])) * cuda::widen(b[column * kDepth + k]);
      d.push_back(sum);
    }
  }
  return d;
}

template <int n>
void expect_product(EmulatedLane& lane, const float (&d)[n][4], const std::vector<double>& want, const char* what) {
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < 4; ++i) {
      const int row = lane.warp() % 4 * 16 + cuda::row_of(lane, i), column = j * 8 + cuda::column_of(lane, i);
      ASSERT_NEAR(d[j][i], want[static_cast<std::size_t>(row * n * 8 + column)], 1e-4) << what << ", " << row << ", " << column;
    }
  }
}

struct Layout {
  Swizzle swizzle;
  std::uint32_t width;  // bytes of an atom's row
};
constexpr Layout kLayouts[] = {{Swizzle::bytes128, 128}, {Swizzle::bytes64, 64}, {Swizzle::bytes32, 32}, {Swizzle::none, 16}};

// The swizzle, which XORs bits 4 and up with bits 7 and up: implemented separately, from the manual's pictures.
std::size_t exchanged(std::size_t offset, std::uint32_t width) {
  const std::size_t place = offset / 16 % (width / 16), row = offset / 128 % (width / 16);
  return offset / width * width + (place ^ row) * 16 + offset % 16;
}

// Rows along k: eight rows of `width` bytes form an atom; atoms follow one another at their own stride.
TEST_F(EmulatedProductsTest, RowsAlongKAreReadWhereTheManualPutsThem) {
  constexpr int kColumns = 24;
  for (const auto& [swizzle, width] : kLayouts) {
    const auto a = matrix(kRows * kDepth), b = matrix(kColumns * kDepth);
    const auto want = product(a, b, kColumns);
    // Without a swizzle, the second eight of k are in separate atoms.
    const std::uint32_t leading = swizzle == Swizzle::none ? 2048 : 16, stride = swizzle == Swizzle::none ? 256 : 8 * width;
    for (std::size_t first = 0; first + 32 <= std::max<std::size_t>(width, 32); first += 32) {  // offset in the atoms' rows
      const auto places = [&](int rows) {
        std::vector<std::size_t> to;
        for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
          for (std::size_t half = 0; half < 2; ++half) {
            const std::size_t in_row = swizzle == Swizzle::none ? half * leading : first + half * 16;
            to.push_back(exchanged(r / 8 * stride + r % 8 * width + in_row, width));
          }
        }
        return to;
      };
      emulate({.threads = kThreads, .shared_bytes = 21 * 1024}, [&](EmulatedLane& lane) {
        std::byte *const left = aligned_shared(lane), *const right = left + 12 * 1024;
        place(lane, left, a, places(kRows));
        place(lane, right, b, places(kColumns));
        lane.sync();
        const auto at = [&](std::byte* from) {
          return cuda::matrix_descriptor(lane.shared_address(from) + static_cast<std::uint32_t>(first), leading, stride,
                                         swizzle);
        };
        float d[kColumns / 8][4];
        lane.fence_products();
        lane.multiply_async(d, at(left), at(right), false);
        lane.commit_products();
        for (const auto& sums : d) EXPECT_TRUE(std::isnan(sums[0]));
        lane.wait_products(Pending<0>{}, d);
        expect_product(lane, d, want, "rows along k");
      });
    }
  }
}

// Rows of k: an atom has eight rows, each with `width` bytes of columns; further columns are in further atoms.
TEST_F(EmulatedProductsTest, RowsOfKAreReadWhereTheManualPutsThem) {
  constexpr int kColumns = 96;
  for (const auto& [swizzle, width] : kLayouts) {
    const auto a = matrix(kRows * kDepth), b = matrix(kColumns * kDepth);  // b[column][k]
    auto twice = product(a, b, kColumns);
    for (auto& x : twice) x *= 2;
    std::vector<bf16> by_k(b.size());
    for (std::size_t column = 0; column < kColumns; ++column) {
      for (std::size_t k = 0; k < kDepth; ++k) by_k[k * kColumns + column] = b[column * kDepth + k];
    }
    // Without a swizzle, "leading" is the distance between groups of eight rows of k, "stride" between groups of eight columns.
    const std::uint32_t k_step = swizzle == Swizzle::none ? 2048 : 8 * width,
                        column_step = swizzle == Swizzle::none ? 128 : 4096;
    std::vector<std::size_t> to;
    for (std::size_t k = 0; k < kDepth; ++k) {
      for (std::size_t column = 0; column < kColumns; column += 8) {
        const std::size_t in_atom = column * 2 % width;
        to.push_back(exchanged(column * 2 / width * column_step + k / 8 * k_step + k % 8 * width + in_atom, width));
      }
    }
    emulate({.threads = kThreads, .shared_bytes = 26 * 1024}, [&](EmulatedLane& lane) {
      std::byte* const right = aligned_shared(lane);
      place(lane, right, by_k, to);
      lane.sync();
      const auto rows = [&](int r, int column) {
        const std::size_t at = static_cast<std::size_t>((lane.warp() * 16 + lane.warp_lane() / 4 + r) * kDepth + column +
                                                        lane.warp_lane() % 4 * 2);
        return static_cast<std::uint32_t>(a[at + 1].bits) << 16 | a[at].bits;
      };
      const std::uint32_t left[4] = {rows(0, 0), rows(8, 0), rows(0, 8), rows(8, 8)};
      const auto place_b = swizzle == Swizzle::none
                               ? cuda::matrix_descriptor(lane.shared_address(right), k_step, column_step, swizzle)
                               : cuda::matrix_descriptor(lane.shared_address(right), column_step, k_step, swizzle);
      float d[kColumns / 8][4];
      lane.fence_products();
      lane.multiply_async_transposed(d, left, place_b, false);
      lane.multiply_async_transposed(d, left, place_b, true);  // adds to the same sums, without a fence in between
      lane.commit_products();
      lane.wait_products(Pending<0>{}, d);
      expect_product(lane, d, twice, "rows of k");
    });
  }
}

// Descriptors must match the tile that kernels copy into, for any width.
template <int kColumns>
void expect_tile(EmulatedProductsTest& test) {
  constexpr int kTileRows = 64;
  const auto q = test.matrix(kTileRows * kColumns);
  for (const std::uint64_t schedule : {0, 1, 5}) {
    emulate(
        {.threads = kThreads, .shared_bytes = cuda::SwizzledTile<kTileRows, kColumns>::kBytes + cuda::kSwizzleAlignment},
        [&](EmulatedLane& lane) {
          const cuda::SwizzledTile<kTileRows, kColumns> tile{aligned_shared(lane)};
          cuda::copy_tile<kThreads>(lane, tile, q.data(), kColumns, kTileRows - 3);
          lane.commit_copies();
          lane.wait_copies(Pending<0>{});
          lane.fence_shared();
          lane.sync();
          float d[kTileRows / 8][4];
          const auto rows = tile.rows_from(lane, 0);
          lane.fence_products();
          for (int k = 0; k < kColumns; k += kDepth)
            lane.multiply_async(d, tile.columns_from(rows, k), tile.columns_from(rows, k), k > 0);
          lane.commit_products();
          lane.wait_products(Pending<0>{}, d);
          for (int j = 0; j < kTileRows / 8; ++j) {
            for (int i = 0; i < 4; ++i) {
              const int row = lane.warp() * 16 + cuda::row_of(lane, i), column = j * 8 + cuda::column_of(lane, i);
              double want = 0;
              for (int c = 0; c < kColumns && row < kTileRows - 3 && column < kTileRows - 3; ++c)
                want += static_cast<double>(cuda::widen(q[static_cast<std::size_t>(row * kColumns + c)])) *
                        cuda::widen(q[static_cast<std::size_t>(column * kColumns + c)]);
              ASSERT_NEAR(d[j][i], want, 1e-3) << kColumns << " columns, " << row << ", " << column;
            }
          }
        },
        schedule);
  }
}
TEST_F(EmulatedProductsTest, SwizzledTilesAreReadAsTheyWereCopied) {
  expect_tile<32>(*this);
  expect_tile<64>(*this);
  expect_tile<96>(*this);
  expect_tile<128>(*this);
}

// A kernel that keeps every rule except the one in `Broken`. It sums two tiles that use the same shared memory in turn.
enum class Broken {
  nothing,
  no_wait_for_copies,
  no_fence_for_memory,
  memory_fence_before_the_wait,
  no_sync,
  no_fence_of_registers,
  changed_behind_the_fence,
  no_commit,
  no_wait,
  copies_too_early,
  sums_written,
  a_changed,
  warps_differ,
  one_warp_less,
  base_not_aligned,
};

// The outcome: an error, "wrong" or "right".
std::string outcome(EmulatedProductsTest& test, Broken broken, std::uint64_t schedule) {
  using Tile = cuda::SwizzledTile<16, 64>;  // rows of k
  const auto b = test.matrix(2 * 16 * 64);
  const auto a = test.matrix(kRows * kDepth);
  std::vector<double> want(kRows * 64);
  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::size_t k = 0; k < kDepth; ++k) {
      for (std::size_t column = 0; column < 64; ++column)
        want[row * 64 + column] +=
            static_cast<double>(cuda::widen(a[row * kDepth + k])) *
            (static_cast<double>(cuda::widen(b[k * 64 + column])) + cuda::widen(b[(16 + k) * 64 + column]));
    }
  }
  bool right = true;
  const auto is = [broken](Broken one) { return broken == one; };
  const auto kernel = [&](EmulatedLane& lane) {
    const Tile tile{is(Broken::base_not_aligned) ? aligned_shared(lane) + 128 : aligned_shared(lane)};
    std::uint32_t left[4];
    float d[8][4] = {};
    const auto load_a = [&] {
      for (int i = 0; i < 4; ++i) {
        const auto at = static_cast<std::size_t>((lane.warp() * 16 + lane.warp_lane() / 4 + i % 2 * 8) * kDepth + i / 2 * 8 +
                                                 lane.warp_lane() % 4 * 2);
        left[i] = static_cast<std::uint32_t>(a[at + 1].bits) << 16 | a[at].bits;
      }
    };
    const auto copy = [&](int t) {
      cuda::copy_tile<kThreads>(lane, tile, b.data() + t * 16 * 64, 64, 16);
      lane.commit_copies();
    };
    load_a();
    copy(0);
    for (int t = 0; t < 2; ++t) {
      if (is(Broken::memory_fence_before_the_wait)) lane.fence_shared();
      if (!is(Broken::no_wait_for_copies)) lane.wait_copies(Pending<0>{});
      if (!is(Broken::no_fence_for_memory) && !is(Broken::memory_fence_before_the_wait)) lane.fence_shared();
      if (!is(Broken::no_sync)) lane.sync();
      if (!is(Broken::no_fence_of_registers)) lane.fence_products();
      if (is(Broken::changed_behind_the_fence)) d[0][0] += 1;
      const auto place_b = tile.transposed(lane);
      if (is(Broken::one_warp_less) && lane.warp() == 3 && t == 1) continue;
      lane.multiply_async_transposed(d, left, place_b, !is(Broken::warps_differ) || lane.warp() != 2);
      if (!is(Broken::no_commit)) lane.commit_products();
      if (is(Broken::sums_written)) d[0][0] = 1;
      if (is(Broken::a_changed)) left[0] ^= 1;
      if (is(Broken::copies_too_early) && t == 0) copy(1);
      if (is(Broken::no_wait) && t == 1) return;
      lane.wait_products(Pending<0>{});
      lane.sync();
      if (!is(Broken::copies_too_early) && t == 0) copy(1);
    }
    for (int j = 0; j < 8; ++j) {
      for (int i = 0; i < 4; ++i) {
        const int row = lane.warp() * 16 + cuda::row_of(lane, i), column = j * 8 + cuda::column_of(lane, i);
        right = right && std::abs(d[j][i] - want[static_cast<std::size_t>(row * 64 + column)]) < 1e-4;
      }
    }
  };
  try {
    emulate({.threads = kThreads, .shared_bytes = Tile::kBytes + cuda::kSwizzleAlignment + 128}, kernel, schedule);
  } catch (const EmulationError& e) {
    return e.what();
  }
  return right ? "right" : "wrong";
}

TEST_F(EmulatedProductsTest, EveryBrokenRuleShows) {
  const auto expect = [&](Broken broken, const char* text) {
    for (const std::uint64_t schedule : {0, 1, 2, 3}) EXPECT_THAT(outcome(*this, broken, schedule), testing::HasSubstr(text));
  };
  expect(Broken::nothing, "right");
  expect(Broken::no_wait_for_copies, "which nobody has copied, waited for and shown");
  expect(Broken::no_fence_for_memory, "which nobody has copied, waited for and shown");
  expect(Broken::memory_fence_before_the_wait, "which nobody has copied, waited for and shown");
  expect(Broken::no_fence_of_registers, "without fence_products()");
  expect(Broken::no_commit, "products that it has not waited for");
  expect(Broken::no_wait, "products that it has not waited for");
  expect(Broken::copies_too_early, "was copied into while a product that reads it was under way");
  expect(Broken::sums_written, "sums were written while a product");
  expect(Broken::a_changed, "registers were changed while a product");
  expect(Broken::warps_differ, "different products");
  expect(Broken::base_not_aligned, "wrong");
  // A register is only known after its first product.
  expect(Broken::changed_behind_the_fence, "changed behind fence_products()");
}

TEST_F(EmulatedProductsTest, SomeScheduleShowsAMissingBarrier) {
  int shown = 0;
  for (std::uint64_t schedule = 0; schedule < 8; ++schedule)
    shown += outcome(*this, Broken::no_sync, schedule) != "right" ? 1 : 0;
  EXPECT_GT(shown, 0);
  EXPECT_THAT(outcome(*this, Broken::one_warp_less, 0), testing::HasSubstr("not all threads"));
}

TEST_F(EmulatedProductsTest, DescriptorsAreDecodedBitByBit) {
  const auto failure = [](std::uint64_t bits, int threads = kThreads) -> std::string {
    try {
      emulate({.threads = threads, .shared_bytes = 4096}, [&](EmulatedLane& lane) {
        float d[8][4];
        const std::uint32_t a[4] = {};
        lane.fence_products();
        lane.multiply_async_transposed(d, a, {bits}, false);
      });
    } catch (const EmulationError& e) {
      return e.what();
    }
    return "it ran";
  };
  constexpr std::uint64_t kPlace = cuda::matrix_descriptor(4096, 1024, 1024, Swizzle::bytes128).bits;
  static_assert(kPlace == (256ULL | 64ULL << 16 | 64ULL << 32 | 1ULL << 62));
  EXPECT_THAT(failure(kPlace), testing::HasSubstr("which nobody has copied"));
  EXPECT_THAT(failure(kPlace | 1ULL << 49), testing::HasSubstr("reserved bits"));
  EXPECT_THAT(failure(kPlace | 1ULL << 14), testing::HasSubstr("reserved bits"));
  EXPECT_THAT(failure(0), testing::HasSubstr("outside of the block's shared memory"));
  EXPECT_THAT(failure(kPlace + 4096), testing::HasSubstr("outside of the block's shared memory"));
  EXPECT_THAT(failure(kPlace, 96), testing::HasSubstr("less than a warpgroup"));
}

}  // namespace
}  // namespace terrace::test
