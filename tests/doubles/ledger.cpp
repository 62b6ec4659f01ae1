#include <terrace/tests/doubles/ledger.h>

#include <fmt/format.h>

namespace terrace {

void Ledger::add(const std::string& axis, const comm::Call& call, int rank, const comm::Machines& machines) {
  auto& entry = entries_[{axis, call.operation}];
  ++entry.calls;
  entry.payload_bytes += call.payload_bytes();
  entry.sent_bytes += terrace::comm::sent_bytes(call, rank, machines.ranks());
  by_link_ += comm::sent_by_link(call, rank, machines);
}

Ledger::Entry Ledger::of(const std::string& axis, comm::Operation operation) const {
  const auto found = entries_.find({axis, operation});
  return found == entries_.end() ? Entry{} : found->second;
}

std::string to_string(const Ledger& ledger) {
  std::string text;
  for (const auto& [key, entry] : ledger.entries()) {
    text += fmt::format("{} {}: {} calls, payload {} bytes, sent {} bytes\n", key.first, name_of(key.second), entry.calls,
                        entry.payload_bytes, entry.sent_bytes);
  }
  return text;
}

namespace {

class LedgerCommunicator final : public Communicator {
 public:
  LedgerCommunicator(std::unique_ptr<Communicator> inner, Ledger& ledger) : inner_(std::move(inner)), ledger_(ledger) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::string& name() const override { return inner_->name(); }
  const comm::Machines& machines() const override { return inner_->machines(); }
  void issue(Stream& stream, comm::Call call) override {
    ledger_.add(name(), call, rank(), machines());
    inner_->issue(stream, std::move(call));
  }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    auto part = inner_->split(color, key, name);
    return part ? with_ledger(std::move(part), ledger_) : nullptr;
  }

 private:
  const std::unique_ptr<Communicator> inner_;
  Ledger& ledger_;
};

}  // namespace

std::unique_ptr<Communicator> with_ledger(std::unique_ptr<Communicator> inner, Ledger& ledger) {
  return std::make_unique<LedgerCommunicator>(std::move(inner), ledger);
}

}  // namespace terrace
