// The mesh: the axes on which the ranks of a run differ. It alone says what a rank's number means and which ranks exchange
// something.
//
//   pp      the stages of a pipeline, which exchange activations
//   copy    replicas of the state (hybrid sharding); they exchange the shards of gradients once a step
//   shard   ranks with different micro-batches that share one replica of the state
//   expert  ranks with different sequences and different experts of a mixture
//   context ranks with different positions of the same sequences; they share the state as data ranks do
//   depth, row, col  ranks with different blocks of the same matrices (tensor parallelism in a grid)
//   part    ranks with different parts of the same layers (tensor parallelism)
//   twin    neighbours with the same part of some parameters
//
// A rank's coordinates are the digits of its number. The first axis varies slowest: it communicates least and may cross
// machines. The ranks of the last axis are neighbours. Several axes can form one set: copy and shard together are the data
// ranks.
//
// Threads: values. Errors: Error(ErrorKind::refused) for degrees and ranks that do not exist.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace terrace {

enum class Axis : std::uint8_t { pp, copy, shard, expert, context, depth, row, col, part, twin };  // outermost first
inline constexpr std::array kAllAxes{Axis::pp,    Axis::copy, Axis::shard, Axis::expert, Axis::context,
                                     Axis::depth, Axis::row,  Axis::col,   Axis::part,   Axis::twin};

class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(Axis axis) : bits_(static_cast<std::uint16_t>(1U << static_cast<unsigned>(axis))) {}  // NOLINT: one axis
  [[nodiscard]] constexpr bool has(Axis axis) const { return (bits_ & AxisSet(axis).bits_) != 0; }
  [[nodiscard]] constexpr bool within(AxisSet other) const { return (bits_ & other.bits_) == bits_; }
  [[nodiscard]] constexpr std::uint16_t bits() const { return bits_; }
  [[nodiscard]] static constexpr AxisSet of_bits(std::uint16_t bits) {
    AxisSet axes;
    axes.bits_ = bits;
    return axes;
  }
  friend constexpr AxisSet operator|(AxisSet a, AxisSet b) { return of_bits(a.bits_ | b.bits_); }
  friend constexpr AxisSet operator&(AxisSet a, AxisSet b) { return of_bits(a.bits_ & b.bits_); }
  friend constexpr AxisSet operator-(AxisSet a, AxisSet b) { return of_bits(static_cast<std::uint16_t>(a.bits_ & ~b.bits_)); }
  friend constexpr auto operator<=>(AxisSet, AxisSet) = default;

 private:
  std::uint16_t bits_ = 0;
};
constexpr AxisSet operator|(Axis a, Axis b) { return AxisSet(a) | AxisSet(b); }
std::string to_string(AxisSet axes);  // "copy+shard"

inline constexpr AxisSet kBatchAxes = Axis::copy | Axis::shard | Axis::expert;  // different sequences
inline constexpr AxisSet kDataAxes = Axis::copy | Axis::shard | Axis::context;  // different tokens, the same parameters
inline constexpr AxisSet kGridAxes = Axis::depth | Axis::row | Axis::col;
inline constexpr AxisSet kTensorAxes = kGridAxes | Axis::part | Axis::twin;  // the same layers and tokens
inline constexpr AxisSet kPartAxes = kTensorAxes | Axis::expert;             // the same layers, different parameters
inline constexpr AxisSet kModelAxes = kPartAxes | Axis::pp;                  // together one replica of the model
inline constexpr AxisSet kAllRanks = kModelAxes | kDataAxes;

struct Mesh {
  std::uint32_t pp = 1, copy = 1, shard = 1, expert = 1, context = 1, depth = 1, row = 1, col = 1, part = 1,
                twin = 1;  // degrees

  [[nodiscard]] std::uint32_t degree(Axis axis) const;
  [[nodiscard]] std::uint32_t size(AxisSet axes = kAllRanks) const;
  [[nodiscard]] std::uint32_t coordinate(std::uint32_t rank, Axis axis) const { return index(rank, axis); }
  // These functions are about the ranks that differ from `rank` on these axes only, in ascending order. index(): the position
  // of `rank` among them; members(): all of them; at(): the one at position `index`.
  [[nodiscard]] std::uint32_t index(std::uint32_t rank, AxisSet axes) const;
  [[nodiscard]] std::vector<std::uint32_t> members(std::uint32_t rank, AxisSet axes) const;
  [[nodiscard]] std::uint32_t at(std::uint32_t rank, AxisSet axes, std::uint32_t index) const;
  // The axes on which ranks differ.
  [[nodiscard]] AxisSet varying() const;
  // The distance between neighbours among the ranks that differ on these axes only.
  [[nodiscard]] std::uint32_t stride(AxisSet axes) const;
  // The rank's position in the order in which gradients of micro-batches are folded. The order is over the ranks with different
  // sequences, by the shard first; neighbours in it differ in their experts.
  [[nodiscard]] std::uint32_t turn(std::uint32_t rank) const {
    return (coordinate(rank, Axis::shard) * copy + coordinate(rank, Axis::copy)) * expert + coordinate(rank, Axis::expert);
  }
  friend bool operator==(const Mesh&, const Mesh&) = default;
};
void demand_mesh(const Mesh& mesh);
std::string to_string(const Mesh& mesh);  // "pp 2 × shard 4 × part 2", "one rank"

}  // namespace terrace
