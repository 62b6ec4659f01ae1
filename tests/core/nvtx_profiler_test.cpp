// NVTX from a tool's view: this program is its own tool. No GPU is needed.
#include <terrace/core/cuda/nvtx_profiler.h>

#include <gmock/gmock.h>
#include <nvtx3/nvToolsExt.h>

#include <string>
#include <vector>

#include <terrace/core/cuda/real_runtime.h>

namespace {

std::vector<std::string> told;

nvtxDomainHandle_t create_domain(const char* name) {
  told.push_back(std::string("domain ") + name);
  return reinterpret_cast<nvtxDomainHandle_t>(&told);
}
void destroy_domain(nvtxDomainHandle_t) { told.emplace_back("the domain ends"); }
int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* range) {
  EXPECT_EQ(domain, reinterpret_cast<nvtxDomainHandle_t>(&told));
  told.push_back(std::string("begin ") + range->message.ascii);
  return 0;
}
int pop(nvtxDomainHandle_t) {
  told.emplace_back("end");
  return 0;
}
void name_stream(nvtx_cudaStream_t, const char* name) { told.push_back(std::string("stream ") + name); }

template <class Function>
void take(NvtxFunctionTable table, unsigned at, Function* function) {
  *table[at] = reinterpret_cast<NvtxFunctionPointer>(function);
}

// NVTX calls this when it is first used.
int attach(NvtxGetExportTableFunc_t tables) {
  const auto* const callbacks = static_cast<const NvtxExportTableCallbacks*>(tables(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable core = nullptr, cuda = nullptr;
  unsigned size = 0;
  if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &core, &size)) return 0;
  if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CUDART, &cuda, &size)) return 0;
  take(core, NVTX_CBID_CORE2_DomainCreateA, create_domain);
  take(core, NVTX_CBID_CORE2_DomainDestroy, destroy_domain);
  take(core, NVTX_CBID_CORE2_DomainRangePushEx, push);
  take(core, NVTX_CBID_CORE2_DomainRangePop, pop);
  take(cuda, NVTX_CBID_CUDART_NameCudaStreamA, name_stream);
  return 1;
}

// NVTX looks here for a linked-in tool; its headers declare the variable in every source file that includes them.
const bool attached = [] {
  InitializeInjectionNvtx2_fnptr = attach;
  return true;
}();

}  // namespace

namespace terrace {

TEST(NvtxProfiler, TellsAToolOfStreamsAndRanges) {
  ASSERT_TRUE(attached);
  const auto runtime = cuda::make_real_cuda_runtime();
  auto* const profiler = runtime->profiler();
  ASSERT_NE(profiler, nullptr);
  profiler->name_stream(nullptr, "compute");
  profiler->begin_range("forward l1 m0");
  profiler->begin_range("norm");
  profiler->end_range();
  profiler->end_range();
  EXPECT_THAT(told,
              testing::ElementsAre("domain terrace", "stream compute", "begin forward l1 m0", "begin norm", "end", "end"));
}

}  // namespace terrace
