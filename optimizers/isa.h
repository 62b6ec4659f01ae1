// Instruction sets that loops are compiled for, and which of them this processor runs.
//
// Threads: any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace terrace {

enum class Isa : std::uint8_t { baseline, avx2, avx512 };
inline constexpr std::array kAllIsas{Isa::baseline, Isa::avx2, Isa::avx512};
constexpr std::string_view name_of(Isa isa) {
  constexpr std::string_view names[] = {"baseline", "avx2", "avx512"};
  return names[static_cast<std::size_t>(isa)];
}
bool runs(Isa isa);  // on this processor
Isa best_isa();

}  // namespace terrace
