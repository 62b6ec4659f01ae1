// Unpacks a packed file piece by piece, in memory that does not depend on the size of the content.
//
// A file packed by gzip or zstd is a sequence of parts (gzip: members, zstd: frames); each can be unpacked alone.
//
// Owner:   the caller. Threads: one at a time.
// Errors:  Error with the reason. It may have a second line, a command to which the caller appends the file's name; the caller
//          also adds the file and the offset.
#pragma once

#include <memory>
#include <span>
#include <string_view>

namespace terrace::lm {

class Unpacker {
 public:
  virtual ~Unpacker() = default;
  // True if a part may begin with these bytes. `packed`: at least four bytes, or all that are left.
  [[nodiscard]] virtual bool begins(std::string_view packed) const = 0;
  // Consumes the front of `packed` and fills the front of `out` until one of them is used up; both then begin after the used
  // bytes. Returns true if the part has ended; the next call begins another part.
  virtual bool unpack(std::string_view& packed, std::span<char>& out) = 0;
};

// Throws Error if this build does not have the library.
std::unique_ptr<Unpacker> gzip_unpacker();
std::unique_ptr<Unpacker> zstd_unpacker();

}  // namespace terrace::lm
