// Settings that are one word of a closed set. The option table reads and writes the words; everything else compares the values.
//
// A new set of words is one specialisation of kWords; a setting of that type is read, saved and explained with them.
//
// Threads: any; constant data.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include <terrace/core/math/dtype.h>
#include <terrace/examples/lm/chat/encoded_conversations.h>
#include <terrace/optimizers/schedule.h>
#include <terrace/parallel/comm/fold.h>
#include <terrace/parallel/layers/parts/transformer.h>
#include <terrace/parallel/mesh/data_parallel.h>
#include <terrace/parallel/mesh/tensor_parallel.h>
#include <terrace/parallel/plan/plan_request.h>
#include <terrace/parallel/train/non_finite.h>

namespace terrace::cli {

// Words that only the program has. The others stand for values of the library.
enum class Tiles : std::uint8_t { automatic, off };
enum class ContextMode : std::uint8_t { ulysses, ring, both, two_rings };
enum class Durability : std::uint8_t { commit, step, off, none };
// Whether a commit leaves the one before it. If not, there are none before the end.
constexpr bool keeps_commits(Durability durability) {
  return durability == Durability::commit || durability == Durability::step;
}
enum class DataFormat : std::uint8_t { automatic, text, bytes, u16, u32, llm_c, conversations };

template <class T>
struct Word {
  std::string_view word;
  T value;
};

// The words of a type, in the order in which users see them.
template <class T>
inline constexpr int kWords = 0;
template <class T>
concept HasWords = requires {
  kWords<T>.size();
};

template <>
inline constexpr auto kWords<Tiles> = std::to_array<Word<Tiles>>({{"auto", Tiles::automatic}, {"off", Tiles::off}});
template <>
inline constexpr auto kWords<ContextMode> = std::to_array<Word<ContextMode>>({{"ulysses", ContextMode::ulysses},
                                                                              {"ring", ContextMode::ring},
                                                                              {"both", ContextMode::both},
                                                                              {"two-rings", ContextMode::two_rings}});
template <>
inline constexpr auto kWords<Durability> = std::to_array<Word<Durability>>(
    {{"commit", Durability::commit}, {"step", Durability::step}, {"off", Durability::off}, {"none", Durability::none}});
template <>
inline constexpr auto kWords<DataFormat> = std::to_array<Word<DataFormat>>({{"auto", DataFormat::automatic},
                                                                            {"text", DataFormat::text},
                                                                            {"bytes", DataFormat::bytes},
                                                                            {"u16", DataFormat::u16},
                                                                            {"u32", DataFormat::u32},
                                                                            {"llm.c", DataFormat::llm_c},
                                                                            {"jsonl", DataFormat::conversations}});
template <>
inline constexpr auto kWords<DType> =
    std::to_array<Word<DType>>({{"fp32", DType::fp32}, {"bf16", DType::bf16}, {"fp16", DType::fp16}, {"fp64", DType::fp64}});
template <>
inline constexpr auto kWords<layers::Products> = std::to_array<Word<layers::Products>>({{"dtype", layers::Products::dtype},
                                                                                        {"fp8", layers::Products::fp8}});
template <>
inline constexpr auto kWords<layers::SkipShape> = std::to_array<Word<layers::SkipShape>>({{"none", layers::SkipShape::none},
                                                                                          {"u", layers::SkipShape::u}});
template <>
inline constexpr auto kWords<lm::BadLine> = std::to_array<Word<lm::BadLine>>({{"stop", lm::BadLine::stop},
                                                                              {"skip", lm::BadLine::skip}});
template <>
inline constexpr auto kWords<NonFinite> = std::to_array<Word<NonFinite>>({{"stop", NonFinite::stop},
                                                                          {"skip", NonFinite::skip}});
template <>
inline constexpr auto kWords<ScheduleKind> = std::to_array<Word<ScheduleKind>>({{"constant", ScheduleKind::constant},
                                                                                {"linear", ScheduleKind::linear},
                                                                                {"cosine", ScheduleKind::cosine},
                                                                                {"wsd", ScheduleKind::wsd}});
template <>
inline constexpr auto kWords<std::optional<Order>> = std::to_array<Word<std::optional<Order>>>(
    {{"auto", std::nullopt}, {"horizontal", Order::horizontal}, {"vertical", Order::vertical}});
template <>
inline constexpr auto kWords<comm::SumOrder> = std::to_array<Word<comm::SumOrder>>({{"machines", comm::SumOrder::machines},
                                                                                    {"ranks", comm::SumOrder::ranks}});
template <>
inline constexpr auto kWords<Travel> =
    std::to_array<Word<Travel>>({{"none", Travel::whole}, {"bf16", Travel::bf16}, {"int8", Travel::int8}});
template <>
inline constexpr auto kWords<TensorMode> = std::to_array<Word<TensorMode>>(
    {{"1d", TensorMode::line}, {"2d", TensorMode::square}, {"2.5d", TensorMode::squares}, {"3d", TensorMode::cube}});

template <HasWords T>
constexpr std::string_view word_of(const T& value) {
  return std::ranges::find(kWords<T>, value, &Word<T>::value)->word;
}
// `word`: one of the type's.
template <HasWords T>
constexpr T value_of(std::string_view word) {
  return std::ranges::find(kWords<T>, word, &Word<T>::word)->value;
}

}  // namespace terrace::cli
