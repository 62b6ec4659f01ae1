// The update of a chunk as a GPU kernel: optimizers/loops/elementwise.h on a Lane (core/cuda/lane.h), with the same rules,
// roundings and codes, so with the same bits. Compiled without contraction (optimizers/cuda/CMakeLists.txt).
//
// A thread block takes a tile of 1,024 elements as four adjacent rows of 256. A row is a block of 8-bit states, whose greatest
// magnitude the threads find together.
//
// A rule of an optimizer of whole layers does not change the weight and returns a direction (layer_kernels.h):
//
//   static A direction(const Factors<A>&, std::int64_t element, A weight, A gradient, A& state0, A& state1);  // counts in the
//   part
//
// Internal to optimizers/.
#pragma once

#include <cstdint>
#include <type_traits>

#include <terrace/core/cuda/lane.h>
#include <terrace/optimizers/formats/bf16_bits.h>
#include <terrace/optimizers/formats/dynamic8_map.h>
#include <terrace/optimizers/formats/random_half.h>
#include <terrace/optimizers/optimizer.h>

namespace terrace::cuda {

inline constexpr int kUpdateThreads = 256, kUpdateRows = 4, kUpdateTile = kUpdateThreads * kUpdateRows;
static_assert(kUpdateThreads == rules::dynamic8::kBlockElements);
inline constexpr int kMaxUpdateParts = 32;  // of one launch

template <class Factors>
struct UpdatePartArgs {
  std::int64_t first = 0, end = 0;
  std::uint64_t stream = 0, tensor_element = 0;
  Factors factors = {};
};
// The tiles from first_tile on, and the parts that touch them.
template <class Factors>
struct UpdateArgs {
  Stored parameter = {}, master = {}, gradient = {}, states[2] = {};
  const rules::dynamic8::Map* maps[2] = {};  // of those states that are 8-bit
  std::uint64_t seed = 0;                    // of this step's stochastic rounding
  std::int64_t first_tile = 0;
  void* directions = nullptr;  // written by rules that return directions; by element of the chunk
  bool first = false;          // true: states have no content yet
  int parts = 0;
  UpdatePartArgs<Factors> part[kMaxUpdateParts] = {};

  // The copy of a master weight is always written whole, with padding; states are written whole at the first update.
  [[nodiscard]] TERRACE_INLINE bool copies() const { return master.format == rules::Format::fp32; }
  [[nodiscard]] TERRACE_INLINE bool whole() const { return first || copies(); }
};

template <class T>
TERRACE_KERNEL T& place(const Stored& stored, std::int64_t at) {
  return reinterpret_cast<T*>(stored.data)[at];
}
template <class A>
TERRACE_KERNEL A read_number(const Stored& stored, std::int64_t at) {
  if constexpr (std::is_same_v<A, float>) {
    if (stored.format == rules::Format::bf16) return rules::widened(place<std::uint16_t>(stored, at));
  }
  return place<A>(stored, at);
}
template <class A>
TERRACE_KERNEL A read_weight(const Stored& parameter, const Stored& master, std::int64_t at) {
  if constexpr (std::is_same_v<A, float>) {
    if (master.format == rules::Format::fp32) return place<float>(master, at);
    if (master.format == rules::Format::low16)
      return rules::joined(place<std::uint16_t>(parameter, at), place<std::uint16_t>(master, at));
    if (master.format == rules::Format::low8)
      return rules::joined24(place<std::uint16_t>(parameter, at), place<std::uint8_t>(master, at));
  }
  return read_number<A>(parameter, at);
}

template <class Rule, class A>
class UpdateTile {
 public:
  using Factors = typename Rule::template Factors<A>;
  using Args = UpdateArgs<Factors>;
  static constexpr int kThreads = kUpdateThreads;
  static constexpr int kStates = static_cast<int>(Rule::kStates.size());
  static constexpr std::size_t kSharedBytes = 2 * kUpdateRows * (kThreads / kWarp) * sizeof(std::uint32_t);

  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const Args& args) const {
    const std::int64_t elements = args.parameter.elements, tile = (args.first_tile + lane.block_x()) * kUpdateTile;
    int part = 0;
    while (part < args.parts && args.part[part].end <= tile) ++part;
    const bool has_part = part < args.parts && args.part[part].first < tile + kUpdateTile;
    const std::int64_t own = tile + lane.thread();  // of row 0
    if (!has_part && !args.first) {
      for (std::int64_t at = own; at < tile + kUpdateTile; at += kThreads) clear_padding(args, at);
      return;
    }

    A weight[kUpdateRows] = {}, gradient[kUpdateRows] = {}, state[2][kUpdateRows] = {};
    int part_of[kUpdateRows];  // −1: padding
    TERRACE_UNROLL
    for (int r = 0; r < kUpdateRows; ++r) {
      const std::int64_t at = own + r * kThreads;
      while (part < args.parts && args.part[part].end <= at) ++part;
      part_of[r] = part < args.parts && args.part[part].first <= at ? part : -1;
      TERRACE_UNROLL
      for (int s = 0; s < kStates; ++s) state[s][r] = read_state(args, s, at, part_of[r] >= 0);
      if (part_of[r] < 0) continue;
      weight[r] = read_weight<A>(args.parameter, args.master, at);
      gradient[r] = read_number<A>(args.gradient, at);
    }
    TERRACE_UNROLL
    for (int r = 0; r < kUpdateRows; ++r) {
      const std::int64_t at = own + r * kThreads;
      if (part_of[r] >= 0) {
        const auto& p = args.part[part_of[r]];
        if constexpr (requires { Rule::kDirects; }) {
          static_cast<A*>(args.directions)[at] =
              Rule::direction(p.factors, at - p.first, weight[r], gradient[r], state[0][r], state[1][r]);
        } else {
          Rule::element(p.factors, weight[r], gradient[r], state[0][r], state[1][r]);
          write_weight(args, p, at, weight[r]);
        }
      } else {
        clear_padding(args, at);
      }
      TERRACE_UNROLL
      for (int s = 0; s < kStates; ++s) {
        if (part_of[r] >= 0 || (args.first && at < elements)) write_state(args.states[s], at, state[s][r]);
      }
    }
    if constexpr (std::is_same_v<A, float> && kStates > 0) {
      if (rules::is_dynamic8(args.states[0].format) || rules::is_dynamic8(args.states[1].format))
        encode(lane, args, tile, state);
    }
  }

 private:
  TERRACE_KERNEL static void clear_padding(const Args& args, std::int64_t at) {
    if (args.copies() && at < args.parameter.elements) place<std::uint16_t>(args.parameter, at) = 0;
  }
  TERRACE_KERNEL static void write_weight(const Args& args, const UpdatePartArgs<Factors>& part, std::int64_t at, A weight) {
    if constexpr (std::is_same_v<A, float>) {
      if (args.master.format == rules::Format::fp32) {
        place<float>(args.master, at) = weight;
        place<std::uint16_t>(args.parameter, at) =
            args.parameter.format == rules::Format::fp16 ? rules::weight_to_fp16(weight) : rules::weight_to_bf16(weight);
        return;
      }
      if (args.master.format == rules::Format::low16) {
        place<std::uint16_t>(args.parameter, at) = rules::weight_to_bf16(weight);
        place<std::uint16_t>(args.master, at) = rules::lower_half(weight);
        return;
      }
      if (args.parameter.format == rules::Format::bf16) {
        const auto element = part.tensor_element + static_cast<std::uint64_t>(at - part.first);
        const std::uint32_t random = rules::random_half(args.seed, part.stream, element);
        if (args.master.format == rules::Format::low8) {
          const float rounded = rules::weight_to_24(weight, rules::random_byte(random));
          place<std::uint16_t>(args.parameter, at) = rules::weight_to_bf16(rounded);
          place<std::uint8_t>(args.master, at) = rules::low_byte(rounded);
          return;
        }
        place<std::uint16_t>(args.parameter, at) = rules::stochastic_to_bf16(weight, random);
        return;
      }
    }
    place<A>(args.parameter, at) = weight;
  }

  // 8-bit states of padding are read, too, because they share their block's scale. An array of such states has whole blocks.
  TERRACE_KERNEL static A read_state(const Args& args, int s, std::int64_t at, bool in_part) {
    const auto& stored = args.states[s];
    if (args.first) return A{0};
    if constexpr (std::is_same_v<A, float>) {
      if (rules::is_dynamic8(stored.format)) {
        const std::int64_t block = at / rules::dynamic8::kBlockElements, blocks = rules::dynamic8::blocks_of(stored.elements);
        if (block >= blocks) return 0;
        return args.maps[s]->values[place<std::uint8_t>(stored, at)] * scale(stored, block);
      }
    }
    return in_part ? read_number<A>(stored, at) : A{0};
  }
  TERRACE_KERNEL static void write_state(const Stored& stored, std::int64_t at, A state) {
    if constexpr (std::is_same_v<A, float>) {
      if (rules::is_dynamic8(stored.format)) return;  // by whole blocks: encode()
      if (stored.format == rules::Format::bf16) {
        place<std::uint16_t>(stored, at) = rules::state_to_bf16(state);
        return;
      }
    }
    place<A>(stored, at) = state;
  }
  TERRACE_KERNEL static float& scale(const Stored& stored, std::int64_t block) {
    return reinterpret_cast<float*>(stored.data +
                                    rules::dynamic8::blocks_of(stored.elements) * rules::dynamic8::kBlockElements)[block];
  }

  template <class Lane>
  TERRACE_KERNEL static void encode(Lane& lane, const Args& args, std::int64_t tile, const A (&state)[2][kUpdateRows]) {
    constexpr int kWarps = kThreads / kWarp;
    auto* const greatest = shared_as<std::uint32_t>(lane);  // [state][row][warp]
    TERRACE_UNROLL
    for (int s = 0; s < kStates; ++s) {
      TERRACE_UNROLL
      for (int r = 0; r < kUpdateRows; ++r) {
        std::uint32_t most = std::bit_cast<std::uint32_t>(state[s][r]) & 0x7fffffffU;
        TERRACE_UNROLL
        for (int mask = kWarp / 2; mask > 0; mask /= 2) {
          const std::uint32_t other = lane.shuffle_xor(most, mask);
          most = most < other ? other : most;
        }
        if (lane.warp_lane() == 0) greatest[(s * kUpdateRows + r) * kWarps + lane.warp()] = most;
      }
    }
    lane.sync();  // every scale has been read, too
    TERRACE_UNROLL
    for (int s = 0; s < kStates; ++s) {
      if (!rules::is_dynamic8(args.states[s].format)) continue;
      TERRACE_UNROLL
      for (int r = 0; r < kUpdateRows; ++r) {
        const std::int64_t block = tile / rules::dynamic8::kBlockElements + r;
        if (block >= rules::dynamic8::blocks_of(args.states[s].elements)) continue;
        std::uint32_t most = 0;
        for (int w = 0; w < kWarps; ++w) {
          const std::uint32_t other = greatest[(s * kUpdateRows + r) * kWarps + w];
          most = most < other ? other : most;
        }
        const bool both = args.states[s].format == rules::Format::dynamic8;
        auto& code = place<std::uint8_t>(args.states[s], tile + r * kThreads + lane.thread());
        code = both ? code_of<rules::dynamic8::Sign::both>(*args.maps[s], state[s][r], most)
                    : code_of<rules::dynamic8::Sign::none>(*args.maps[s], state[s][r], most);
        if (lane.thread() == 0) {
          scale(args.states[s], block) = rules::dynamic8::has_no_codes(most) ? rules::dynamic8::scale_without_codes(most)
                                                                             : rules::dynamic8::scale_of(most);
        }
      }
    }
  }
  template <rules::dynamic8::Sign kSign>
  TERRACE_KERNEL static std::uint8_t code_of(const rules::dynamic8::Map& map, float value, std::uint32_t greatest) {
    if (rules::dynamic8::has_no_codes(greatest)) return rules::dynamic8::code_of_zero<kSign>();
    const auto bits = std::bit_cast<std::int32_t>(value);
    const float inverse = 1.0F / rules::dynamic8::scale_of(greatest);
    const auto x = std::bit_cast<std::int32_t>(std::bit_cast<float>(bits & 0x7fffffff) * inverse);
    return rules::dynamic8::code_of<kSign>(bits,
                                           rules::dynamic8::rank_of(map.steps[rules::dynamic8::interval_of(x)], x & 0xffff));
  }
};

}  // namespace terrace::cuda
