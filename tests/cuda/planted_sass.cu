// Not built: tests compile this file to check that sass_gate.sh finds faulty kernels and passes correct ones.
#include <terrace/core/cuda/cuda_lane.h>
#include <terrace/core/cuda/kernels/swizzled_tile.h>

using namespace terrace::cuda;

#if defined(PLANTED_PRODUCTS) || defined(PLANTED_CHAIN)  // four products in sequence that add to the same sums
__global__ void __launch_bounds__(128) kernel(const terrace::bf16* x, float* y) {
  CudaLane lane;
  using Tile = SwizzledTile<64, 64>;
  const Tile tile{swizzle_base(lane)};
  copy_tile<128>(lane, tile, x, 64, 64);
  lane.commit_copies();
  await_copies(lane);
  const auto rows = tile.rows_from(lane, 0);
  float d[8][4];
  lane.fence_products();
  for (int k = 0; k < 64; k += 16) {
    lane.multiply_async(d, Tile::columns_from(rows, k), Tile::columns_from(rows, k), k > 0);
#ifdef PLANTED_CHAIN  // reads registers of unfinished products
    d[0][0] += y[k];
#endif
  }
  lane.commit_products();
  lane.wait_products(Pending<0>{}, d);
  for (int n = 0; n < 8; ++n)
    for (int i = 0; i < 4; ++i) y[(n * 4 + i) * 128 + lane.thread()] = d[n][i];
}
#elif defined(PLANTED_WIDE)
__global__ void kernel(const float4* x, float4* y) { y[threadIdx.x] = x[threadIdx.x]; }
#elif defined(PLANTED_NARROW)
__global__ void kernel(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }
#elif defined(PLANTED_LOCAL)  // an indexed array cannot be in registers
__global__ void kernel(const float* x, const int* places, float* y) {
  float v[16] = {};
  for (int i = 0; i < 64; ++i) v[places[i] & 15] += x[i];
  y[threadIdx.x] = v[places[0] & 15];
}
#endif
