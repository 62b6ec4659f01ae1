#include <terrace/core/cuda/nvtx_profiler.h>

#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtCudaRt.h>

namespace terrace::cuda {
namespace {

class NvtxProfiler final : public CudaProfiler {
 public:
  explicit NvtxProfiler(nvtxDomainHandle_t domain) : domain_(domain) {}
  ~NvtxProfiler() override { nvtxDomainDestroy(domain_); }
  NvtxProfiler(const NvtxProfiler&) = delete;
  NvtxProfiler& operator=(const NvtxProfiler&) = delete;

  void name_stream(CudaStreamHandle stream, const std::string& name) override { nvtxNameCudaStreamA(stream, name.c_str()); }
  void begin_range(const std::string& name) override {
    nvtxEventAttributes_t range{};
    range.version = NVTX_VERSION;
    range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    range.messageType = NVTX_MESSAGE_TYPE_ASCII;
    range.message.ascii = name.c_str();
    nvtxDomainRangePushEx(domain_, &range);
  }
  void end_range() override { nvtxDomainRangePop(domain_); }

 private:
  const nvtxDomainHandle_t domain_;
};

}  // namespace

// Without a profiler, NVTX's calls do nothing, and the domain is null.
std::unique_ptr<CudaProfiler> make_nvtx_profiler() {
  const auto domain = nvtxDomainCreateA("terrace");
  return domain ? std::make_unique<NvtxProfiler>(domain) : nullptr;
}

}  // namespace terrace::cuda
