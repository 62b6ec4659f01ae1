#include <zstd.h>
#include <zstd_errors.h>

#include <cstdint>
#include <cstring>
#include <new>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/unpack/unpacker.h>

namespace terrace::lm {
namespace {

class ZstdUnpacker final : public Unpacker {
 public:
  ZstdUnpacker() : stream_(::ZSTD_createDStream()) {
    if (!stream_) throw std::bad_alloc();
  }

  // Accepts frames with content, and skippable frames, in which seekable files keep their index.
  [[nodiscard]] bool begins(std::string_view packed) const override {
    std::uint32_t magic = 0;
    if (packed.size() < sizeof magic) return false;
    std::memcpy(&magic, packed.data(), sizeof magic);
    return magic == ZSTD_MAGICNUMBER || (magic & ZSTD_MAGIC_SKIPPABLE_MASK) == ZSTD_MAGIC_SKIPPABLE_START;
  }

  bool unpack(std::string_view& packed, std::span<char>& out) override {
    ZSTD_inBuffer from{packed.data(), packed.size(), 0};
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    const auto left = ::ZSTD_decompressStream(stream_.get(), &to, &from);
    packed.remove_prefix(from.pos);
    out = out.subspan(to.pos);
    if (::ZSTD_isError(left) == 0) return left == 0;
    const auto error = ::ZSTD_getErrorCode(left);
    if (error == ZSTD_error_memory_allocation) throw std::bad_alloc();
    if (error == ZSTD_error_frameParameter_windowTooLarge)
      throw Error("it needs a window of more than 128 MiB\n  unpack it first: unzstd --long=31 -k");
    throw Error(::ZSTD_getErrorName(left));
  }

 private:
  struct Free {
    void operator()(ZSTD_DStream* stream) const { ::ZSTD_freeDStream(stream); }
  };
  std::unique_ptr<ZSTD_DStream, Free> stream_;
};

}  // namespace

std::unique_ptr<Unpacker> zstd_unpacker() { return std::make_unique<ZstdUnpacker>(); }

}  // namespace terrace::lm
