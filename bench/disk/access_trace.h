// The accesses of a program to one tier, in order. They can be replayed under any eviction policy.
//
// The text form has one line per action: "device read:12:65536 update:13:65536 drop:14:4096", that is access:chunk:bytes.
// Everything on a line is needed at once; `drop` means that the content is not needed after this action. A line that begins
// with '#' is a comment.
//
// Threads: any; values. Errors: Error(ErrorKind::refused) that names the line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/memory/chunk.h>

namespace terrace::bench {

struct AccessTrace {
  struct Action {
    Tier tier = Tier::device;
    std::vector<Use> uses;
    std::vector<ChunkId> dead;
    friend bool operator==(const Action&, const Action&);
  };
  std::vector<std::uint64_t> chunk_bytes;  // indexed by chunk
  std::vector<Action> actions;
  friend bool operator==(const AccessTrace&, const AccessTrace&) = default;
};

std::string to_text(const AccessTrace& trace);
// Renumbers chunks in the order in which they appear.
AccessTrace parse_trace(std::string_view text);

}  // namespace terrace::bench
