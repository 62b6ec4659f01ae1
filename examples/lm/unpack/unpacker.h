// Turns the bytes of a packed file back into its content, piece by piece, with memory that does not depend on how much comes
// out.
//
// A file that gzip or zstd has packed is one part after another (gzip: members, zstd: frames); each can be unpacked alone.
//
// Owner:   the caller. Threads: one at a time.
// Errors:  Error with the reason, and perhaps a second line with what to do, which the file's name then ends; the caller adds
// the
//          file and the place.
#pragma once

#include <memory>
#include <span>
#include <string_view>

namespace terrace::lm {

class Unpacker {
 public:
  virtual ~Unpacker() = default;
  // Whether a part may begin so. `packed`: at least four bytes, or all that are left.
  [[nodiscard]] virtual bool begins(std::string_view packed) const = 0;
  // Takes from the front of `packed` and fills the front of `out`, as far as one of them allows; both then begin behind what
  // was used. Returns whether the part has ended; the next call begins another one.
  virtual bool unpack(std::string_view& packed, std::span<char>& out) = 0;
};

// Error if this build has not the library.
std::unique_ptr<Unpacker> gzip_unpacker();
std::unique_ptr<Unpacker> zstd_unpacker();

}  // namespace terrace::lm
