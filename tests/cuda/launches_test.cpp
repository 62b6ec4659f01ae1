// Results do not depend on how a kernel is launched, and a kernel reports an invalid index.
#include <terrace/core/cuda/kernels/activation.h>
#include <terrace/core/cuda/kernels/elementwise.h>
#include <terrace/core/cuda/kernels/embed.h>
#include <terrace/core/cuda/kernels/embed_grad.h>
#include <terrace/core/cuda/math/column_sums.h>
#include <terrace/tests/support/gpu/emulated_lane.h>

#include <cstring>

#include <terrace/tests/cuda/emulated_gpu.h>
#include <terrace/tests/cuda/kernel_case.h>

namespace terrace::test {
namespace {

using cuda::LaunchShape;

constexpr int kBlocks[] = {32, 64, 96, 256, 512};  // threads

class LaunchesTest : public KernelTest {
 protected:
  // Runs the kernel with every number of threads; `out` must get the same bits each time.
  template <class Kernel, class Args>
  void expect_same_for_all_blocks(const char* name, Tensor& out, const Args& args,
                                  const std::function<LaunchShape(int threads)>& shape) {
    std::string want;
    for (const int threads : kBlocks) {
      out.poison();
      emulate<Kernel>(shape(threads), args, generator() % 8);
      if (want.empty()) want = out.bits();
      EXPECT_TRUE(out.bits() == want) << name << " with blocks of " << threads;
    }
    for (std::int64_t i = 0; i < out.size(); ++i) ASSERT_FALSE(std::isnan(out.get(i))) << name << " left out " << i;
  }
};

TEST_F(LaunchesTest, ElementwiseBitsDoNotDependOnTheBlock) {
  const std::int64_t n = 4099;
  const auto x = random(DType::fp32, {n}), r = random(DType::fp32, {n});
  Tensor y(DType::fp32, {n}), narrow(DType::bf16, {n});
  using Add = cuda::Add<float>;
  using Convert = cuda::Convert<bf16, float>;
  const auto flat = [&](int vectors, int width) {
    return [=](int threads) {
      return LaunchShape{.blocks = {cuda::ceil_div(n, std::int64_t{threads} * vectors * width), 1, 1}, .threads = threads};
    };
  };
  const auto* const x_data = x.view().as<float>();
  expect_same_for_all_blocks<Add>("add", y, cuda::AddArgs<float>{y.view().as<float>(), x_data, r.view().as<float>(), n, true},
                                  flat(Add::kVectors, cuda::kWidth<float>));
  expect_same_for_all_blocks<Convert>("convert", narrow,
                                      cuda::ConvertArgs<bf16, float>{narrow.view().as<bf16>(), x_data, n, false, true},
                                      flat(Convert::kVectors, cuda::kCommonWidth<bf16, float>));
}

// A GPU with 99 KiB per block refuses larger blocks. Attention requests a size that leaves space for two blocks there, and
// gives the same bits.
TEST_F(LaunchesTest, AttentionFitsSmallMultiprocessors) {
  std::string want;
  for (const std::size_t shared_bytes : {227 * 1024, 99 * 1024, 49 * 1024}) {
    std::string bits;
    for (const std::int64_t dim : {32, 64, 96, 128}) {
      ThreadPool pool(1);
      const auto emulated = make_emulated_gpu(pool, {.kernel = "warps", .shared_bytes = shared_bytes});
      const auto on = emulated->make_stream("compute");
      const AttentionShape s{.batch = 1, .seq = 70, .heads = 2, .kv_heads = 1, .head_dim = dim};
      Tensor qkv(DType::bf16, {70, 4 * dim}), dout(DType::bf16, {70, 2 * dim}), out(DType::bf16, {70, 2 * dim});
      Tensor lse(DType::fp32, {1, 2, 70}), dqkv(DType::bf16, {70, 4 * dim});
      std::mt19937_64 same(7);
      qkv.random(same), dout.random(same);
      emulated->math().attention(*on, s, out, lse, qkv);
      emulated->math().attention_grad(*on, s, dqkv, dout, out, lse, qkv);
      on->synchronize();
      bits += out.bits() + lse.bits() + dqkv.bits();
    }
    if (want.empty()) want = bits;
    EXPECT_TRUE(bits == want) << shared_bytes;
  }
}

TEST_F(LaunchesTest, RowsDoNotDependOnTheBlock) {
  const std::int64_t rows = 3, f = 1003;
  const auto x = random(DType::bf16, {rows, 2 * f}, -5, 5);
  Tensor y(DType::bf16, {rows, f});
  expect_same_for_all_blocks<cuda::GatedRows<bf16, cuda::Bend::silu>>(
      "swiglu", y, cuda::GatedArgs<bf16>{y.view().as<bf16>(), nullptr, x.view().as<bf16>(), f, false}, [](int threads) {
        return LaunchShape{.blocks = {rows, 1, 1}, .threads = threads};
      });
}

TEST_F(LaunchesTest, SumsOfUsesDoNotDependOnTheBlock) {
  const std::int64_t n = 700, vocabulary = 300, c = 40, ranges = cuda::ceil_div(vocabulary, cuda::kVocabularyRange);
  auto tokens = random(DType::i32, {n}, 0, static_cast<double>(vocabulary));
  for (std::int64_t i = 0; i < n; i += 3) tokens.set(i, 7);
  std::int64_t here = n;
  for (std::int64_t i = 0; i < n; i += 10, --here) tokens.set(i, -1);  // not in this part of the table
  const auto dy = random(DType::fp32, {n, c});
  Tensor index(DType::i32, {n + ranges + 1}), dtable(DType::fp32, {vocabulary, c});
  cuda::FaultWord fault = 0;
  const auto* const token = tokens.view().as<std::int32_t>();
  auto* const begin = index.view().as<std::int32_t>();
  auto* const uses = begin + ranges + 1;
  std::string want_index, want;
  for (const int threads : kBlocks) {
    index.poison(), dtable.poison();
    emulate<cuda::IndexUses>({.blocks = {ranges, 1, 1}, .threads = threads, .shared_bytes = 128},
                             cuda::IndexUsesArgs{token, uses, begin, &fault, n, vocabulary}, generator() % 8);
    using Rows = cuda::EmbedGradRows<float, float>;
    emulate<Rows>({.blocks = {cuda::ceil_div(vocabulary, cuda::kRowsABlock), cuda::ceil_div(c, threads * Rows::kW), 1},
                   .threads = threads,
                   .shared_bytes = 128 + static_cast<std::size_t>(threads) * 4},
                  cuda::EmbedGradArgs<float, float>{dtable.view().as<float>(), dy.view().as<float>(), token, uses, begin, c,
                                                    vocabulary, false, true},
                  generator() % 8);
    if (want.empty()) want_index = index.bits(), want = dtable.bits();
    EXPECT_TRUE(index.bits() == want_index) << "the index with blocks of " << threads;
    EXPECT_TRUE(dtable.bits() == want) << "the sums with blocks of " << threads;
  }
  // The index itself: sorted by range, ascending, with every use of this table's tokens exactly once.
  EXPECT_EQ(begin[0], 0);
  EXPECT_EQ(begin[ranges], here);
  std::vector<bool> seen(static_cast<std::size_t>(n));
  for (std::int64_t range = 0; range < ranges; ++range) {
    for (std::int32_t i = begin[range]; i < begin[range + 1]; ++i) {
      EXPECT_EQ(token[uses[i]] / cuda::kVocabularyRange, range);
      EXPECT_TRUE(i == begin[range] || uses[i - 1] < uses[i]) << i;
      seen[static_cast<std::size_t>(uses[i])] = true;
    }
  }
  EXPECT_EQ(std::ranges::count(seen, true), here);
  EXPECT_EQ(fault, 0U);
}

TEST_F(LaunchesTest, PartsOfRowsFitTheWorkspace) {
  const cuda::Workspace nowhere;
  for (const std::int64_t rows : {1, 63, 64, 65, 4096, 32768, 1000003}) {
    for (const std::int64_t columns : {1, 768, 28672, 128256, 2000000}) {
      const auto p = cuda::ops::row_parts<float>(nowhere, rows, columns, 2, true);
      const std::int64_t parts = cuda::ceil_div(rows, p.rows_a_part);
      EXPECT_LE(parts, 64) << rows << " rows of " << columns;
      EXPECT_LE(static_cast<std::size_t>(parts * columns * 2) * sizeof(float), cuda::kWorkspaceBytes) << rows << ' ' << columns;
    }
  }
  EXPECT_THROW(cuda::ops::row_parts<float>(nowhere, 1, std::int64_t{1} << 23, 2, true), std::logic_error);
}

// The message of the stream's error.
std::string failure(Stream& stream) {
  try {
    stream.synchronize();
  } catch (const std::out_of_range& e) {
    return e.what();
  }
  return "nothing";
}

TEST_F(LaunchesTest, ABadIndexIsNamedAndItsRowIsNotANumber) {
  const std::int64_t c = 5, vocabulary = 6;
  Tensor tokens(DType::i32, {4}), y(DType::fp32, {4, c}), loss(DType::fp64, {4}), dlogits(DType::fp32, {4, vocabulary});
  for (int i = 0; i < 4; ++i) tokens.set(i, i);
  const auto table = random(DType::fp32, {vocabulary, c}), logits = random(DType::fp32, {4, vocabulary});
  const auto dy = random(DType::fp32, {4, c}), lse = random(DType::fp32, {4}, 2, 3);
  for (const int bad : {-7, 6, 1 << 30}) {
    tokens.set(2, bad);
    const std::string text = std::to_string(bad) + " at 2 is outside a vocabulary of 6";
    {
      Gpu fresh;
      fresh.math.embed(*fresh.stream, y, tokens, table, {}, 4);
      EXPECT_EQ(failure(*fresh.stream), "embed: token " + text);
      for (std::int64_t i = 0; i < y.size(); ++i) {
        if (i / c == 2) {
          EXPECT_TRUE(std::isnan(y.get(i)));
        } else {
          EXPECT_EQ(y.get(i), table.get(i));
        }
      }
      // The fault is reported once: the next stream with this workspace starts without one.
      fresh.stream.reset();
      fresh.stream = fresh.device->make_stream("next");
      fresh.math.add(*fresh.stream, y, y, y);
      EXPECT_EQ(failure(*fresh.stream), "nothing");
    }
    {
      Gpu fresh;
      Tensor dtable(DType::fp32, {vocabulary, c});
      fresh.math.embed_grad(*fresh.stream, dtable, {}, tokens, dy, 4, Accumulate::no);
      EXPECT_EQ(failure(*fresh.stream), "embed: token " + text);
    }
    {
      Gpu fresh;
      fresh.math.cross_entropy(*fresh.stream, loss, dlogits, logits, tokens, 1);
      EXPECT_EQ(failure(*fresh.stream), "cross_entropy: target " + text);
      for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(std::isnan(loss.get(i)), i == 2);
        EXPECT_EQ(std::isnan(dlogits.get(i * vocabulary)), i == 2);
      }
    }
    {
      Gpu fresh;
      fresh.math.cross_entropy_part(*fresh.stream, loss, dlogits, logits, tokens, lse, 1);
      EXPECT_EQ(failure(*fresh.stream), "cross_entropy_part: target " + text);
      for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(std::isnan(loss.get(i)), i == 2);
        EXPECT_EQ(std::isnan(dlogits.get(i * vocabulary)), i == 2);
      }
    }
  }
}

// Work after an invalid index does not run, as after any failed kernel.
TEST_F(LaunchesTest, ABadIndexEndsTheStream) {
  Gpu fresh;
  Tensor tokens(DType::i32, {1}), y(DType::fp32, {1, 4});
  tokens.set(0, 9);
  const auto table = random(DType::fp32, {3, 4});
  fresh.math.embed(*fresh.stream, y, tokens, table, {}, 1);
  const auto event = fresh.stream->record();
  EXPECT_THROW(event.wait(), std::out_of_range);
  bool ran = false;
  fresh.stream->submit([&] { ran = true; });
  EXPECT_THROW(fresh.stream->synchronize(), std::out_of_range);
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace terrace::test
