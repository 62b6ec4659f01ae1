#include <terrace/core/math/typical_numbers.h>

#include <algorithm>
#include <cstdint>

#include <terrace/core/base/units.h>
#include <terrace/core/math/philox.h>

namespace terrace::math {

void fill_with_typical_numbers(Device& device, std::span<std::byte> memory) {
  constexpr std::size_t kContentBytes = 4 * kMiB;
  const auto host_memory = device.host_memory();
  const Slab content = host_memory->allocate(kContentBytes);
  const std::span words(reinterpret_cast<std::uint32_t*>(content.data()), kContentBytes / sizeof(std::uint32_t));
  fill_normal(reinterpret_cast<float*>(words.data()), static_cast<std::int64_t>(words.size()), 1, 1, 0, 0.02);
  for (auto& word : words) word = (word & 0xffff0000U) | (word >> 16);
  const auto stream = device.make_stream("numbers");
  for (std::size_t at = 0; at < memory.size(); at += kContentBytes)
    stream->copy(memory.data() + at, content.data(), std::min(kContentBytes, memory.size() - at));
  stream->synchronize();
}

}  // namespace terrace::math
