// The kernel tables of all instruction sets of this processor give the same bits for fp32, bf16 and fp16.
#include <terrace/core/math/cpu/kernels.h>

#include <terrace/tests/math/kernel_tables.h>
#include <terrace/tests/math/math_fixture.h>

namespace terrace::test {
namespace {

using cpu::Kernels;

template <class T>
std::string run(const cpu::KernelsOf<T, float>& k, const Tensor& x_, const Tensor& y_, std::int64_t n) {
  const auto* x = reinterpret_cast<const T*>(x_.view().data);
  const auto* y = reinterpret_cast<const T*>(y_.view().data);
  std::string all;
  const auto keep = [&](const auto& v) { all.append(reinterpret_cast<const char*>(v.data()), v.size() * sizeof v[0]); };
  std::vector<T> out(static_cast<std::size_t>(n)), more(static_cast<std::size_t>(n));
  std::vector<float> statistics(2), sums(64);
  std::vector<double> scalars;
  k.norm_row(out.data(), &statistics[0], &statistics[1], x, y, y, n, 1e-5, 1.0F, nullptr), keep(out), keep(statistics);
  k.norm_input_grad_row(out.data(), x, y, x, &statistics[0], statistics[1], n, false, 1.0F, nullptr), keep(out);
  const float square = 1.5F;
  k.norm_row(out.data(), nullptr, &statistics[1], x, y, nullptr, n, 1e-5, 1.0F, &square), keep(out), keep(statistics);
  k.norm_input_grad_row(out.data(), x, y, x, nullptr, statistics[1], n, false, 1.0F, &square), keep(out);
  for (const T* const gain : {x, static_cast<const T*>(nullptr)}) scalars.push_back(k.row_product(x, y, gain, n, 1.0F));
  k.gelu(out.data(), x, n), keep(out);
  k.gelu_grad(out.data(), y, x, n), keep(out);
  k.swiglu(out.data(), x, y, n), keep(out);
  k.swiglu_grad(out.data(), more.data(), x, y, x, n), keep(out), keep(more);
  k.geglu(out.data(), x, y, n), keep(out);
  k.geglu_grad(out.data(), more.data(), x, y, x, n), keep(out), keep(more);
  k.multiply(out.data(), x, n, 1.7F), keep(out);
  k.soft_cap(out.data(), x, n, 0.6F, 0.5F), keep(out);
  k.soft_cap_grad(more.data(), y, out.data(), n, 0.6F, 0.5F), keep(more);
  k.add(out.data(), x, y, n), keep(out);
  k.scale(out.data(), x, y, n, true), keep(out);
  const auto columns = std::min<std::int64_t>(n, 61);
  k.column_sums(sums.data(), x, n / columns, columns, columns), keep(sums);
  scalars.push_back(k.dot(x, y, n));
  scalars.push_back(k.cross_entropy_row(out.data(), x, n, 0, 0.7)), keep(out);
  const float lse = k.log_sum_exp_row(x, n);
  scalars.push_back(lse);
  scalars.push_back(k.cross_entropy_part_row(out.data(), x, n, static_cast<std::int32_t>(n - 1), lse, 0.7)), keep(out);
  scalars.push_back(k.sum(x, n));
  scalars.push_back(k.sum_of_squares(x, n));
  keep(scalars);
  return all;
}

class KernelsTest : public MathTest {};

TEST_F(KernelsTest, InstructionSetsAgree) {
  for (const std::int64_t n : {1, 5, 16, 31, 64, 769, 5000}) {
    const auto x = random(DType::fp32, {n}, -9, 9), y = random(DType::fp32, {n}, -9, 9);
    const auto hx = random(DType::bf16, {n}, -9, 9), hy = random(DType::bf16, {n}, -9, 9);
    const auto fp32 = run(cpu::kKernelsBaseline.fp32, x, y, n), bf16 = run(cpu::kKernelsBaseline.bf16, hx, hy, n);
    const auto fx = random(DType::fp16, {n}, -9, 9), fy = random(DType::fp16, {n}, -9, 9);
    const auto fp16 = run(cpu::kKernelsBaseline.fp16, fx, fy, n);
    for (const Kernels* table : kernel_tables()) {
      EXPECT_TRUE(run(table->fp32, x, y, n) == fp32) << table->name << " fp32, " << n << " elements";
      EXPECT_TRUE(run(table->bf16, hx, hy, n) == bf16) << table->name << " bf16, " << n << " elements";
      EXPECT_TRUE(run(table->fp16, fx, fy, n) == fp16) << table->name << " fp16, " << n << " elements";
    }
  }
}

TEST_F(KernelsTest, InstructionSetsMergeLogSumsAlike) {
  for (const std::int64_t n : {1, 15, 64, 1001}) {
    const std::int64_t count = 5;
    const auto parts = random(DType::fp32, {count, n}, -90, 90);
    auto targets = random(DType::i32, {n}, 0, 9);
    targets.set(n / 2, -1);
    const auto merged = [&](const Kernels& table) {
      Tensor whole(DType::fp32, {n});
      table.softmax_fp32.merge_log_sums(whole.view().as<float>(), parts.view().as<float>(), count, n,
                                        targets.view().as<std::int32_t>(), n);
      return whole.bits();
    };
    const auto want = merged(cpu::kKernelsBaseline);
    for (const Kernels* table : kernel_tables()) EXPECT_TRUE(merged(*table) == want) << table->name << ", " << n << " elements";
  }
}

}  // namespace
}  // namespace terrace::test
