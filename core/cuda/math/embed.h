// Embeddings and their gradient.
#pragma once

#include <string>

#include <terrace/core/base/error.h>
#include <terrace/core/cuda/kernels/embed.h>
#include <terrace/core/cuda/kernels/embed_grad.h>
#include <terrace/core/cuda/math/geometry.h>
#include <terrace/core/cuda/math/launcher.h>

namespace terrace::cuda::ops {

template <class Launcher>
struct Embeddings {
  static void embed(const Launcher&, TensorView y, TensorView tokens, TensorView table, TensorView positions, std::int64_t seq,
                    std::int64_t first_position);
  static void embed_grad(const Launcher&, TensorView dtable, TensorView dpositions, TensorView tokens, TensorView dy,
                         std::int64_t seq, Accumulate);
  static void ids_in_part(const Launcher&, TensorView out, TensorView ids, std::int64_t first, std::int64_t count);
};

template <class Launcher>
void Embeddings<Launcher>::embed(const Launcher& launcher, TensorView y, TensorView tokens, TensorView table,
                                 TensorView positions, std::int64_t seq, std::int64_t first_position) {
  with_type(y.dtype, [&]<class T>() {
    const std::int64_t c = columns_of(y);
    launcher.template run<EmbedRows<T>>(row_shape<EmbedRows<T>, T>(tokens.elements(), c),
                                        EmbedArgs<T>{.y = data<T>(y),
                                                     .tokens = data<std::int32_t>(tokens),
                                                     .table = data<T>(table),
                                                     .positions = data<T>(positions),
                                                     .fault = launcher.workspace.fault(Fault::token),
                                                     .columns = c,
                                                     .vocabulary = table.shape[0],
                                                     .seq = seq,
                                                     .first_position = first_position,
                                                     .whole = whole_words(c, {y, table, positions})});
  });
}

template <class Launcher>
void Embeddings<Launcher>::embed_grad(const Launcher& launcher, TensorView dtable, TensorView dpositions,
                                      TensorView given_tokens, TensorView dy, std::int64_t seq, Accumulate accumulate) {
  const std::int64_t n = given_tokens.elements(), vocabulary = dtable.shape[0], c = columns_of(dy);
  const std::int64_t ranges = ceil_div(vocabulary, kVocabularyRange);
  if (static_cast<std::size_t>(2 * n + ranges + 1) * sizeof(std::int32_t) > kWorkspaceBytes) {
    throw Error("embed_grad: the index of " + std::to_string(n) + " tokens and a vocabulary of " + std::to_string(vocabulary) +
                " is larger than the workspace of " + std::to_string(kWorkspaceBytes) + " bytes; take smaller micro-batches");
  }
  auto* const begin = launcher.workspace.template as<std::int32_t>();
  auto* const uses = begin + ranges + 1;
  auto* const tokens = uses + n;
  launcher.template run<CopyIds>(flat_shape<CopyIds>(n, 1), CopyIdsArgs{tokens, data<std::int32_t>(given_tokens), n});
  launcher.template run<IndexUses>({.blocks = {ranges, 1, 1}, .threads = IndexUses::kThreads, .shared_bytes = kRoomBytes<int>},
                                   IndexUsesArgs{tokens, uses, begin, launcher.workspace.fault(Fault::token), n, vocabulary});

  with_type(dy.dtype, [&]<class T>() {
    with_gradient_type<T>(dtable.dtype, [&]<class Out>() {
      using Kernel = EmbedGradRows<T, Out>;
      auto shape = slice_shape<Kernel>(ceil_div(vocabulary, kRowsABlock), c);
      shape.shared_bytes = kRoomBytes<int> + static_cast<std::size_t>(shape.threads) * sizeof(std::int32_t);
      launcher.template run<Kernel>(shape,
                                    EmbedGradArgs<T, Out>{data<Out>(dtable), data<T>(dy), tokens, uses, begin, c, vocabulary,
                                                          accumulate == Accumulate::yes, whole_words(c, {dtable, dy})});
    });
    if (dpositions.empty()) return;
    with_gradient_type<T>(dpositions.dtype, [&]<class Out>() {
      using Kernel = PositionGradRows<T, Out>;
      launcher.template run<Kernel>(slice_shape<Kernel>(rows_of(dpositions), c),
                                    PositionGradArgs<T, Out>{data<Out>(dpositions), data<T>(dy), n, c, seq,
                                                             accumulate == Accumulate::yes, whole_words(c, {dpositions, dy})});
    });
  });
}

template <class Launcher>
void Embeddings<Launcher>::ids_in_part(const Launcher& launcher, TensorView out, TensorView ids, std::int64_t first,
                                       std::int64_t count) {
  launcher.template run<IdsInPart>(
      flat_shape<IdsInPart>(ids.elements(), 1),
      IdsInPartArgs{data<std::int32_t>(out), data<std::int32_t>(ids), ids.elements(), first, count});
}

}  // namespace terrace::cuda::ops
