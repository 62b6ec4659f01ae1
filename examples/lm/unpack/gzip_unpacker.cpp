#include <zlib.h>

#include <algorithm>
#include <limits>
#include <new>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/unpack/unpacker.h>

namespace terrace::lm {
namespace {

class GzipUnpacker final : public Unpacker {
 public:
  GzipUnpacker() {
    constexpr int kWithGzipsHeader = 16;
    if (::inflateInit2(&stream_, MAX_WBITS + kWithGzipsHeader) != Z_OK) throw std::bad_alloc();
  }
  ~GzipUnpacker() override { ::inflateEnd(&stream_); }
  GzipUnpacker(const GzipUnpacker&) = delete;
  GzipUnpacker& operator=(const GzipUnpacker&) = delete;

  [[nodiscard]] bool begins(std::string_view packed) const override { return packed.starts_with("\x1f\x8b"); }

  bool unpack(std::string_view& packed, std::span<char>& out) override {
    const auto in_count = limited(packed.size()), out_count = limited(out.size());
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));  // zlib does not change these bytes
    stream_.avail_in = in_count;
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = out_count;
    const auto result = ::inflate(&stream_, Z_NO_FLUSH);
    packed.remove_prefix(in_count - stream_.avail_in);
    out = out.subspan(out_count - stream_.avail_out);
    if (result == Z_MEM_ERROR) throw std::bad_alloc();
    if (result == Z_NEED_DICT) throw Error("it was packed with a dictionary");
    const bool goes_on = result == Z_OK || result == Z_BUF_ERROR;  // the latter: no input, or no room for output
    if (!goes_on && result != Z_STREAM_END) throw Error(stream_.msg != nullptr ? stream_.msg : "zlib gives no reason");
    if (result == Z_STREAM_END) ::inflateReset(&stream_);
    return result == Z_STREAM_END;
  }

 private:
  static uInt limited(std::size_t bytes) {
    return static_cast<uInt>(std::min<std::size_t>(bytes, std::numeric_limits<uInt>::max()));
  }
  z_stream stream_{};
};

}  // namespace

std::unique_ptr<Unpacker> gzip_unpacker() { return std::make_unique<GzipUnpacker>(); }

}  // namespace terrace::lm
