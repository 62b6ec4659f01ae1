// A communicator that counts what goes through it: operation, axis, calls and bytes, as the volume formulas count them.
//
// Owner:   the ledger is the caller's and outlives the communicators that write into it, one for each rank.
// Threads: as the communicators: one issuing thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <terrace/parallel/comm/between_machines.h>
#include <terrace/parallel/comm/communicator.h>

namespace terrace {

class Ledger {
 public:
  struct Entry {
    std::uint64_t calls = 0;
    std::uint64_t payload_bytes = 0;  // the length of the (whole) buffer: Φe for an all-gather, reduce-scatter or all-reduce
    std::uint64_t sent_bytes = 0;     // what this rank must send: (d−1)/d of it, and twice that for an all-reduce
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  using Key = std::pair<std::string, comm::Operation>;  // axis: the communicator's name

  void add(const std::string& axis, const comm::Call& call, int rank, const comm::Machines& machines);
  [[nodiscard]] Entry of(const std::string& axis, comm::Operation operation) const;  // zeros if nothing was issued
  [[nodiscard]] const std::map<Key, Entry>& entries() const { return entries_; }
  // All bytes that this rank sends, as the backends send them: on several machines they differ from the formulas.
  [[nodiscard]] const comm::SentByLink& by_link() const { return by_link_; }
  void clear() { *this = {}; }

 private:
  std::map<Key, Entry> entries_;
  comm::SentByLink by_link_;
};
std::string to_string(const Ledger& ledger);  // one line per entry

// Counts at issue. Communicators that are split from it count in the same ledger, under their own names.
std::unique_ptr<Communicator> with_ledger(std::unique_ptr<Communicator> inner, Ledger& ledger);

}  // namespace terrace
