// Not built: tests compile this file with the kernels' flags, to check that the build fails if a kernel uses local memory.
__global__ void __launch_bounds__(1024) kernel(const float* x, const int* places, float* y) {
#if defined(PLANTED_SPILL)  // more values than the registers of 1,024 threads can hold
  constexpr int values = 96;
  float v[values];
  for (int i = 0; i < values; ++i) v[i] = x[threadIdx.x + i * 1024];
  __syncthreads();
  for (int round = 0; round < 8; ++round)
    for (int i = 0; i < values; ++i) v[i] = v[i] * v[(i * 7 + 1) % values] + v[(i + round) % values];
  for (int i = 0; i < values; ++i) y[threadIdx.x + i * 1024] = v[i];
#elif defined(PLANTED_ARRAY)  // an indexed array cannot be in registers
  float v[16] = {};
  for (int i = 0; i < 64; ++i) v[places[i] & 15] += x[i];
  y[threadIdx.x] = v[places[0] & 15];
#else
  y[threadIdx.x] = x[places[threadIdx.x]];
#endif
}
