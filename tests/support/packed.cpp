#include <terrace/tests/support/packed.h>

#include <stdexcept>

#include <zlib.h>
#include <zstd.h>

namespace terrace::test {

std::string gzip_packed(std::string_view text) {
  constexpr int kWithGzipsHeader = 16, kUsualMemory = 8;
  z_stream stream{};
  if (::deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, MAX_WBITS + kWithGzipsHeader, kUsualMemory,
                     Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::runtime_error("deflateInit2");
  std::string packed(::deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  const auto result = ::deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  ::deflateEnd(&stream);
  if (result != Z_STREAM_END) throw std::runtime_error("deflate");
  return packed;
}

std::string zstd_packed(std::string_view text, int window_bits) {
  auto* const context = ::ZSTD_createCCtx();
  ::ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);  // as the program does
  ::ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_bits);
  // Without the size, as if from a pipe: then the window has the requested size.
  std::string packed(::ZSTD_compressBound(text.size()) + 64, '\0');
  ZSTD_inBuffer from{text.data(), text.size(), 0};
  ZSTD_outBuffer to{packed.data(), packed.size(), 0};
  ::ZSTD_compressStream2(context, &to, &from, ZSTD_e_continue);
  const auto left = ::ZSTD_compressStream2(context, &to, &from, ZSTD_e_end);
  ::ZSTD_freeCCtx(context);
  if (left != 0) throw std::runtime_error("ZSTD_compressStream2");
  packed.resize(to.pos);
  return packed;
}

}  // namespace terrace::test
