#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include <terrace/core/math/cpu/ops.h>

namespace terrace::cpu {
namespace {

constexpr std::int64_t kVocabularyBlock = 1024;  // rows of the table per task of the gradient
constexpr std::int32_t kElsewhere = -1;          // the token is not in this part of the table

void check_tokens(const std::int32_t* token, std::int64_t n, std::int64_t vocabulary) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (token[i] < kElsewhere || token[i] >= vocabulary) {
      throw std::out_of_range("embed: token " + std::to_string(token[i]) + " at " + std::to_string(i) +
                              " is outside a vocabulary of " + std::to_string(vocabulary));
    }
  }
}

// One row of a gradient: the rows of dy listed in `rows` are summed in that order, then written or added.
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
        const std::size_t bytes = static_cast<std::size_t>(c) * sizeof(T);
        const T* const row = token[i] == kElsewhere ? nullptr : raw<T>(table) + token[i] * c;
        const T* const position = positions.empty() ? nullptr : raw<T>(positions) + (i % seq + first_position) * c;
        if (row && position) {
          kernels_for<T>(compute.kernels).add(out, row, position, c);
        } else if (row || position) {
          std::memcpy(out, row ? row : position, bytes);
        } else {
          std::memset(out, 0, bytes);
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
  // The positions of each token's uses, ascending. Tokens that are elsewhere sort first and belong to no row of the table.
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

void ids_in_part(Compute compute, TensorView out, TensorView ids, std::int64_t first, std::int64_t count) {
  const auto* const id = raw<const std::int32_t>(ids);
  auto* const position = raw<std::int32_t>(out);
  blocks(compute.pool, ids.elements(), rows_a_task(1), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t at = id[i] - first;
      position[i] = at >= 0 && at < count ? static_cast<std::int32_t>(at) : kElsewhere;
    }
  });
}

}  // namespace terrace::cpu
