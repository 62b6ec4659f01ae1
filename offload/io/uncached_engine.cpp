// Uses buffered files without filling the page cache, for file systems that refuse O_DIRECT.
//
// Written pages can be dropped only once they are on the disk. So the write-out of a request's pages starts when the request
// ends; a few requests later the engine waits for it and drops the pages. This lag bounds the dirty pages and keeps the disk
// busy meanwhile.
#include <fcntl.h>

#include <cerrno>
#include <deque>
#include <map>
#include <utility>

#include <terrace/offload/io/io_engine.h>

namespace terrace {
namespace {

constexpr std::size_t kLag = 8;  // requests whose write-out may be under way

class UncachedEngine final : public IoEngine {
 public:
  UncachedEngine(std::unique_ptr<IoEngine> inner, const std::vector<int>& files, WriteOut write_out)
      : inner_(std::move(inner)),
        files_(files),
        write_out_(write_out ? std::move(write_out) : ::sync_file_range),
        errors_(files.size()) {
    for (const int file : files_) buffered_.push_back((::fcntl(file, F_GETFL) & O_DIRECT) == 0);
  }
  ~UncachedEngine() override {
    while (!writing_out_.empty()) drop_oldest();
  }

  void submit(std::span<IoRequest* const> requests) override {
    for (IoRequest* const request : requests) {
      const auto file = static_cast<std::size_t>(request->file);
      if (file >= buffered_.size() || !buffered_[file]) continue;
      done_[request] = std::move(request->done);
      request->done = [this](IoRequest& ended, int error_number) { finish(ended, error_number); };
    }
    inner_->submit(requests);
  }
  std::size_t poll(std::chrono::nanoseconds wait) override { return inner_->poll(wait); }
  void wake() override { inner_->wake(); }
  std::size_t in_flight() const override { return inner_->in_flight(); }
  std::string name() const override { return inner_->name(); }

 private:
  struct Range {
    std::size_t file = 0;  // index in files_
    off_t offset = 0, bytes = 0;
  };

  void finish(IoRequest& request, int error_number) {
    const Range range{static_cast<std::size_t>(request.file), static_cast<off_t>(request.offset),
                      static_cast<off_t>(request.bytes)};
    if (request.op == IoRequest::Op::read) {
      drop(range);
    } else if (error_number == 0) {
      write_out(range, SYNC_FILE_RANGE_WRITE);
      writing_out_.push_back(range);
      if (writing_out_.size() > kLag) drop_oldest();
      error_number = errors_[range.file];
    }
    auto entry = done_.extract(&request);
    request.done = std::move(entry.mapped());  // the caller's own function
    request.done(request, error_number);       // may destroy the request, may submit others
  }
  void drop_oldest() {
    const auto range = writing_out_.front();
    writing_out_.pop_front();
    write_out(range, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    drop(range);
  }
  // The kernel reports an error of the write-out only once, here, and a later fsync would succeed. So from then on every write
  // to the file fails with that error, and lost data can never be committed.
  void write_out(const Range& range, unsigned flags) {
    if (write_out_(files_[range.file], range.offset, range.bytes, flags) == 0 || errors_[range.file] != 0) return;
    const bool there_is_none = errno == ENOSYS || errno == EPERM || errno == EINVAL;  // then the pages stay until fsync
    if (!there_is_none) errors_[range.file] = errno;
  }
  void drop(const Range& range) const { ::posix_fadvise(files_[range.file], range.offset, range.bytes, POSIX_FADV_DONTNEED); }

  const std::unique_ptr<IoEngine> inner_;
  const std::vector<int> files_;
  const WriteOut write_out_;
  std::vector<int> errors_;  // the first error of each file's write-out; 0: none
  std::vector<bool> buffered_;
  std::map<IoRequest*, std::function<void(IoRequest&, int)>> done_;  // the callers' own functions
  std::deque<Range> writing_out_;
};

}  // namespace

std::unique_ptr<IoEngine> make_uncached_engine(std::unique_ptr<IoEngine> inner, const std::vector<int>& files,
                                               WriteOut write_out) {
  for (const int file : files)
    if ((::fcntl(file, F_GETFL) & O_DIRECT) == 0)
      return std::make_unique<UncachedEngine>(std::move(inner), files, std::move(write_out));
  return inner;
}

}  // namespace terrace
