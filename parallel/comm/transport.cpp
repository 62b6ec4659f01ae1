#include <terrace/parallel/comm/transport.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include <terrace/parallel/comm/rank_failed.h>

namespace terrace::comm {
namespace {

// Collectives run in the order of issue, even if they were issued to different streams.
class Turns {
 public:
  void take(std::uint64_t turn) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return next_ == turn || error_; });
    if (error_) std::rethrow_exception(error_);
  }
  void pass() {
    {
      const std::lock_guard lock(mutex_);
      ++next_;
    }
    changed_.notify_all();
  }
  void fail(std::exception_ptr error) {
    {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::move(error);
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t next_ = 0;
  std::exception_ptr error_;
};

// Returns text() or, if there is no memory for it, `brief`, which is so short that it needs none.
template <class Text>
std::string text_or(const char* brief, const Text& text) noexcept {
  try {
    return text();
  } catch (const std::exception&) {
    return brief;
  }
}

// Shared by the communicator and its calls; destroyed with the last of them.
struct Shared {
  explicit Shared(std::shared_ptr<Transport> t) : transport(std::move(t)) {}
  ~Shared() {
    if (transport) transport->leave();
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  // `why` makes the text of the reason, for which there may be no memory.
  template <class Why>
  void fail(std::exception_ptr error, const Why& why) noexcept {
    transport->fail(text_or("out of memory", why));
    turns.fail(std::move(error));
  }

  std::shared_ptr<Transport> transport;  // null: released
  Turns turns;
};

// A call in a stream. A failed stream drops its work: a call that is destroyed without having run tells the other ranks.
class Ticket {
 public:
  Ticket(std::shared_ptr<Shared> shared, Call call, std::uint64_t number, std::uint64_t turn)
      : shared_(std::move(shared)), call_(std::move(call)), number_(number), turn_(turn) {}
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;
  ~Ticket() {
    if (ran_) return;
    const auto why = [&] {
      return fmt::format("call {}, {}, was dropped: its stream failed before it", number_, to_string(call_));
    };
    const auto error = [&] {
      try {
        return std::make_exception_ptr(RankFailed(why()));
      } catch (...) {  // without memory for the text
        return std::current_exception();
      }
    };
    shared_->fail(error(), why);
  }

  void run() {
    ran_ = true;
    const bool in_turn = is_collective(call_.operation);
    try {
      if (in_turn) shared_->turns.take(turn_);
      shared_->transport->run(call_, number_);
      if (in_turn) shared_->turns.pass();
    } catch (const std::exception& error) {
      shared_->fail(std::current_exception(),
                    [&] { return fmt::format("call {}, {}: {}", number_, to_string(call_), error.what()); });
      throw;
    }
  }

 private:
  const std::shared_ptr<Shared> shared_;
  const Call call_;
  const std::uint64_t number_, turn_;
  bool ran_ = false;
};

class StreamCommunicator final : public Communicator {
 public:
  explicit StreamCommunicator(std::shared_ptr<Transport> transport) : shared_(std::make_shared<Shared>(std::move(transport))) {}

  int rank() const override { return shared_->transport->rank(); }
  int size() const override { return shared_->transport->size(); }
  const std::string& name() const override { return shared_->transport->name(); }
  const Machines& machines() const override { return shared_->transport->machines(); }
  std::shared_ptr<Transport> release() { return std::move(shared_->transport); }

  void issue(Stream& stream, Call call) override {
    const auto turn = is_collective(call.operation) ? turns_++ : 0;
    stream.submit([ticket = std::make_shared<Ticket>(shared_, std::move(call), ++issued_, turn)] { ticket->run(); });
  }

  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    const auto turn = turns_++;
    try {
      shared_->turns.take(turn);
      auto part = shared_->transport->split(color, key, name, ++issued_);
      shared_->turns.pass();
      return part ? make_communicator(std::move(part)) : nullptr;
    } catch (const std::exception& error) {
      shared_->fail(std::current_exception(), [&] { return fmt::format("split into {}: {}", name, error.what()); });
      throw;
    }
  }

 private:
  const std::shared_ptr<Shared> shared_;
  std::uint64_t issued_ = 0, turns_ = 0;  // used only by the issuing thread
};

}  // namespace

std::shared_ptr<Transport> release_transport(std::unique_ptr<Communicator> communicator) {
  if (auto* const plain = dynamic_cast<StreamCommunicator*>(communicator.get())) return plain->release();
  throw std::logic_error("release_transport: the communicator is a decorator");
}

std::unique_ptr<Communicator> make_communicator(std::shared_ptr<Transport> transport) {
  return std::make_unique<StreamCommunicator>(std::move(transport));
}

}  // namespace terrace::comm
