#include <terrace/tests/support/gpu/emulated_products.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include <terrace/tests/support/gpu/emulated_lane.h>

namespace terrace::test {
namespace {

constexpr std::uint32_t kSumsUnderWay = 0xffffffffU;  // a NaN that no product gives

float number(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

// PTX ISA, "Matrix Descriptor Format".
struct Decoded {
  explicit Decoded(cuda::MatrixDescriptor place)
      : address(field(place.bits)),
        leading(field(place.bits >> 16)),
        stride(field(place.bits >> 32)),
        swizzle(static_cast<int>(place.bits >> 62)) {
    constexpr std::uint64_t kFields = 0x3fffULL | 0x3fffULL << 16 | 0x3fffULL << 32 | 3ULL << 62;
    if ((place.bits & ~kFields) != 0)
      throw EmulationError("a matrix descriptor with reserved bits, or of a pattern that does not begin at its multiple");
  }
  static std::uint32_t field(std::uint64_t bits) { return static_cast<std::uint32_t>(bits & 0x3fffU) << 4; }
  // Bytes of an atom's row.
  [[nodiscard]] std::uint32_t width() const {
    constexpr std::array<std::uint32_t, 4> kWidths = {16, 128, 64, 32};
    return kWidths[static_cast<std::size_t>(swizzle)];
  }
  // Offset in the window of the element `r` (in the dimension other than k) and `k`.
  [[nodiscard]] std::uint32_t element(std::uint32_t r, std::uint32_t k, bool transposed) const {
    std::uint32_t at = address;
    if (!transposed) {
      at += r / 8 * stride + r % 8 * width() + k % 8 * 2 + k / 8 * (swizzle == 0 ? leading : 16);
    } else if (swizzle == 0) {
      at += r / 8 * stride + r % 8 * 2 + k / 8 * leading + k % 8 * 16;
    } else {
      const std::uint32_t columns = width() / 2;
      at += r / columns * leading + r % columns * 2 + k / 8 * stride + k % 8 * width();
    }
    const std::uint32_t mask = width() / 16 - 1;
    return at ^ ((at >> 7 & mask) << 4);
  }
  std::uint32_t address, leading, stride;
  int swizzle;
};

}  // namespace

void EmulatedProducts::begin_block(int threads, std::size_t shared_bytes) {
  shown_.assign((shared_bytes + 15) / 16, false);
  warps_.assign(static_cast<std::size_t>(threads) / cuda::kWarp, {});
}

std::string EmulatedProducts::trouble_at_end() const {
  for (std::size_t w = 0; w < warps_.size(); ++w) {
    const auto& warp = warps_[w];
    if (!warp.begun.empty() || !warp.groups.empty())
      return "warp " + std::to_string(w) + " has ended with products that it has not waited for";
    if (warp.log != warps_[w / 4 * 4].log) return "warps of a warpgroup have begun different products";
  }
  return {};
}

void EmulatedProducts::read(Matrix& matrix, SharedWindow shared) const {
  const Decoded decoded(matrix.place);
  matrix.values.clear();
  for (int r = 0; r < matrix.rows; ++r) {
    for (std::uint32_t k = 0; k < 16; ++k) {
      const std::uint32_t at = decoded.element(static_cast<std::uint32_t>(matrix.first_row + r), k, matrix.transposed);
      const std::size_t offset = at - shared.address;  // huge if it is before the window
      if (at < shared.address || offset / 16 >= shown_.size())
        throw EmulationError("a product reads outside of the block's shared memory, at " + std::to_string(at));
      if (!shown_[offset / 16])
        throw EmulationError("a product reads shared memory at offset " + std::to_string(offset) +
                             ", which nobody has copied, waited for and shown to it with fence_shared()");
      std::uint16_t bits = 0;
      std::memcpy(&bits, shared.data + offset, sizeof bits);
      matrix.values.push_back(bits);
    }
  }
}

// A register is known from its first product on; from then on its content must be the same as at the last fence.
void EmulatedProducts::demand_fenced(Warp& warp, const void* registers, std::size_t bytes) {
  const auto* const now = static_cast<const std::byte*>(registers);
  const auto [at, fresh] = warp.registers.try_emplace(registers, now, now + bytes);
  if (!fresh && !std::equal(at->second.begin(), at->second.end(), now))
    throw EmulationError("registers of a product were changed behind fence_products()");
}

void EmulatedProducts::begin(int w, ProductOperands** all, SharedWindow shared) {
  auto& warp = warps_[static_cast<std::size_t>(w)];
  const auto& first = *all[0];
  if (static_cast<std::size_t>(w / 4 * 4 + 4) > warps_.size()) throw EmulationError("a product of less than a warpgroup");
  if (!warp.fenced) throw EmulationError("a product without fence_products() since the last wait");
  warp.log.push_back(std::to_string(first.n) + ", " + std::to_string(first.a_place.bits) + ", " + std::to_string(first.b.bits) +
                     (first.add ? ", added" : ""));
  const auto& leader = warps_[static_cast<std::size_t>(w / 4 * 4)].log;
  if (warp.log.size() <= leader.size() && leader[warp.log.size() - 1] != warp.log.back())
    throw EmulationError("warps of a warpgroup have begun different products");

  Product product;
  product.sums = first.d;
  product.read.push_back({first.b, 0, 8 * first.n, first.b_transposed, {}});
  if (first.a == nullptr) product.read.push_back({first.a_place, w % 4 * 16, 16, false, {}});
  for (auto& matrix : product.read) read(matrix, shared);

  // PTX ISA, "Register Fragments": the same as for mma.m16n8k16, 16 rows per warp.
  std::array<std::array<std::uint16_t, 16>, 16> left{};
  for (std::size_t t = 0; t < kLanes; ++t) {
    const auto& mine = *all[t];
    if (mine.n != first.n || mine.a_place.bits != first.a_place.bits || mine.b.bits != first.b.bits || mine.add != first.add)
      throw EmulationError("threads of a warp give different descriptors to a product");
    if (mine.a == nullptr) continue;
    demand_fenced(warp, mine.a, sizeof(Fragment));
    product.a[t] = mine.a;
    std::memcpy(product.a_values[t].data(), mine.a, sizeof(Fragment));
    for (std::size_t i = 0; i < 8; ++i) {
      const std::uint32_t two = product.a_values[t][i / 2];
      left[t / 4 + (i % 4 < 2 ? 0 : 8)][t % 4 * 2 + i % 2 + (i < 4 ? 0 : 8)] =
          static_cast<std::uint16_t>(i % 2 == 0 ? two : two >> 16);
    }
  }
  if (first.a == nullptr) {
    for (std::size_t row = 0; row < 16; ++row) {
      for (std::size_t k = 0; k < 16; ++k) left[row][k] = product.read[1].values[row * 16 + k];
    }
  }

  const auto columns = static_cast<std::size_t>(8 * first.n), mine = static_cast<std::size_t>(4 * first.n);
  auto& sums = warp.under_way[first.d];
  if (sums.products == 0) {
    sums.n = first.n;
    sums.values.resize(kLanes * mine);
    for (std::size_t t = 0; t < kLanes; ++t) {
      sums.d[t] = all[t]->d;
      demand_fenced(warp, all[t]->d, mine * sizeof(float));
      std::memcpy(&sums.values[t * mine], all[t]->d, mine * sizeof(float));
      std::memset(all[t]->d, static_cast<int>(kSumsUnderWay & 0xffU), mine * sizeof(float));
    }
  } else if (sums.n != first.n) {
    throw EmulationError("a product adds to sums of another shape that is under way");
  }
  ++sums.products;
  std::vector<float> right(16 * columns);  // [k][column], so that the inner loop vectorises
  for (std::size_t column = 0; column < columns; ++column) {
    for (std::size_t k = 0; k < 16; ++k) right[k * columns + column] = number(product.read[0].values[column * 16 + k]);
  }
  std::vector<double> row_sums(columns);  // a GPU has its own order and rounding here, so tests must not rely on them
  for (std::size_t row = 0; row < 16; ++row) {
    row_sums.assign(columns, 0.0);
    for (std::size_t k = 0; k < 16; ++k) {
      const double factor = number(left[row][k]);
      for (std::size_t column = 0; column < columns; ++column) row_sums[column] += factor * right[k * columns + column];
    }
    for (std::size_t column = 0; column < columns; ++column) {
      const std::size_t thread = row % 8 * 4 + column % 8 / 2, place = column / 8 * 4 + column % 2 + row / 8 * 2;
      float& sum = sums.values[thread * mine + place];
      sum = static_cast<float>((first.add ? static_cast<double>(sum) : 0.0) + row_sums[column]);
    }
  }
  warp.begun.push_back(std::move(product));
}

void EmulatedProducts::fence(int w) {
  auto& warp = warps_[static_cast<std::size_t>(w)];
  warp.fenced = true;
  for (auto& [registers, bytes] : warp.registers) std::memcpy(bytes.data(), registers, bytes.size());
}

void EmulatedProducts::commit(int w) {
  auto& warp = warps_[static_cast<std::size_t>(w)];
  warp.groups.push_back(std::move(warp.begun));
  warp.begun.clear();
}

void EmulatedProducts::end(Warp& warp, const Product& product, SharedWindow shared) const {
  for (const auto& matrix : product.read) {
    Matrix late = matrix;
    try {
      read(late, shared);
    } catch (const EmulationError&) {
      throw EmulationError("shared memory was copied into while a product that reads it was under way");
    }
    if (late.values != matrix.values)
      throw EmulationError("shared memory was written while a product that reads it was under way");
  }
  for (std::size_t t = 0; t < kLanes; ++t) {
    if (product.a[t] != nullptr && std::memcmp(product.a[t], product.a_values[t].data(), sizeof(Fragment)) != 0)
      throw EmulationError("registers were changed while a product that reads them was under way");
  }
  auto& sums = warp.under_way.at(product.sums);
  const auto mine = static_cast<std::size_t>(4 * sums.n);
  for (std::size_t t = 0; t < kLanes; ++t) {
    for (std::size_t i = 0; i < mine; ++i) {
      if (std::bit_cast<std::uint32_t>(sums.d[t][i]) != kSumsUnderWay)
        throw EmulationError("sums were written while a product was under way that adds to them");
    }
    if (sums.products == 1) std::memcpy(sums.d[t], &sums.values[t * mine], mine * sizeof(float));
  }
  if (--sums.products == 0) warp.under_way.erase(product.sums);
}

void EmulatedProducts::wait(int w, std::size_t pending, SharedWindow shared) {
  auto& warp = warps_[static_cast<std::size_t>(w)];
  warp.fenced = false;
  while (warp.groups.size() > pending) {
    for (const auto& product : warp.groups.front()) end(warp, product, shared);
    warp.groups.pop_front();
  }
}

bool EmulatedProducts::is_under_way(int w, const float* d) const {
  const auto& known = warps_[static_cast<std::size_t>(w)].under_way;
  for (const auto& [first, sums] : known) {
    for (const auto* const one : sums.d) {
      if (one == d) return true;
    }
  }
  return false;
}

}  // namespace terrace::test
