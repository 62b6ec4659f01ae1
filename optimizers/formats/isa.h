// Instruction sets that loops are compiled for, and which of them this processor runs.
//
// Threads: any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace terrace::rules {

// Each set includes those before it, so a loop that is not compiled for a set runs in the version for the one before.
enum class Isa : std::uint8_t { baseline, avx2, avx512, avx512vbmi, avx512bf16 };
inline constexpr std::array kAllIsas{Isa::baseline, Isa::avx2, Isa::avx512, Isa::avx512vbmi, Isa::avx512bf16};
constexpr std::string_view name_of(Isa isa) {
  constexpr std::string_view names[] = {"baseline", "avx2", "avx512", "avx512vbmi", "avx512bf16"};
  return names[static_cast<std::size_t>(isa)];
}
// fp32 numbers per instruction.
constexpr int lanes_of(Isa isa) { return isa == Isa::baseline ? 4 : isa == Isa::avx2 ? 8 : 16; }
bool runs(Isa isa);  // on this processor
Isa best_isa();

}  // namespace terrace::rules
