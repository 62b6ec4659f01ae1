#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include <terrace/core/cpu/ops.h>

namespace terrace::cpu {
namespace {

constexpr std::int64_t kVocabularyBlock = 1024;  // rows of the table a task of the gradient owns

void check_tokens(const std::int32_t* token, std::int64_t n, std::int64_t vocabulary) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (token[i] < 0 || token[i] >= vocabulary) {
      throw std::out_of_range("embed: token " + std::to_string(token[i]) + " at " + std::to_string(i) +
                              " is outside a vocabulary of " + std::to_string(vocabulary));
    }
  }
}

// One row of a gradient: the rows of dy that `rows` lists, summed in that order, then written or added.
template <class T>
void gather_row(Compute compute, TensorView to, std::int64_t row, const T* dy, std::int64_t c, const std::int64_t* rows,
                std::int64_t count, Accumulate accumulate) {
  std::byte* const out = to.data + row * c * static_cast<std::int64_t>(size_of(to.dtype));
  if (count == 0) {
    if (accumulate == Accumulate::no) std::memset(out, 0, static_cast<std::size_t>(c) * size_of(to.dtype));
    return;
  }
  Acc<T>* const total = scratch<Acc<T>>(Scratch::tile, c);
  std::fill(total, total + c, Acc<T>{0});
  for (std::int64_t i = 0; i < count; ++i) kernels_for<T>(compute.kernels).axpy(total, Acc<T>{1}, dy + rows[i] * c, c);
  convert_kernel(compute.kernels, to.dtype, dtype_of<Acc<T>>::value, accumulate == Accumulate::yes)(out, total, c);
}

}  // namespace

void embed(Compute compute, TensorView y, TensorView tokens, TensorView table, TensorView positions, std::int64_t seq,
           std::int64_t first_position) {
  const auto* const token = raw<const std::int32_t>(tokens);
  const std::int64_t c = columns_of(y), n = tokens.elements();
  check_tokens(token, n, table.shape[0]);
  for_dtype(y.dtype, [&]<class T>() {
    blocks(compute.pool, n, rows_a_task(c), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        T* const out = raw<T>(y) + i * c;
        const T* const row = raw<T>(table) + token[i] * c;
        if (positions.empty()) {
          std::memcpy(out, row, static_cast<std::size_t>(c) * sizeof(T));
        } else {
          kernels_for<T>(compute.kernels).add(out, row, raw<T>(positions) + (i % seq + first_position) * c, c);
        }
      }
    });
  });
}

void embed_grad(Compute compute, TensorView dtable, TensorView dpositions, TensorView tokens, TensorView dy, std::int64_t seq,
                Accumulate accumulate) {
  const auto* const token = raw<const std::int32_t>(tokens);
  const std::int64_t c = columns_of(dy), n = tokens.elements(), vocabulary = dtable.shape[0];
  check_tokens(token, n, vocabulary);
  // The uses of each token, ascending.
  std::vector<std::int64_t> uses(static_cast<std::size_t>(n));
  std::iota(uses.begin(), uses.end(), 0);
  std::stable_sort(uses.begin(), uses.end(), [&](std::int64_t a, std::int64_t b) { return token[a] < token[b]; });
  for_dtype(dy.dtype, [&]<class T>() {
    const T* const grad = raw<T>(dy);
    blocks(compute.pool, vocabulary, kVocabularyBlock, [&](std::int64_t begin, std::int64_t end) {
      auto use =
          std::lower_bound(uses.begin(), uses.end(), begin, [&](std::int64_t i, std::int64_t v) { return token[i] < v; });
      for (std::int64_t v = begin; v < end; ++v) {
        const auto first = use;
        while (use != uses.end() && token[*use] == v) ++use;
        gather_row(compute, dtable, v, grad, c, uses.data() + (first - uses.begin()), use - first, accumulate);
      }
    });
    if (dpositions.empty()) return;
    const std::int64_t sequences = (n + seq - 1) / seq;
    blocks(compute.pool, dpositions.shape[0], 16, [&](std::int64_t begin, std::int64_t end) {
      std::vector<std::int64_t> rows;
      for (std::int64_t p = begin; p < end; ++p) {
        rows.clear();
        for (std::int64_t b = 0; p < seq && b < sequences; ++b) {
          if (b * seq + p < n) rows.push_back(b * seq + p);
        }
        gather_row(compute, dpositions, p, grad, c, rows.data(), static_cast<std::int64_t>(rows.size()), accumulate);
      }
    });
  });
}

}  // namespace terrace::cpu
