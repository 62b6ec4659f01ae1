#include <terrace/examples/terrace/base/user_cache.h>

#include <fcntl.h>

#include <cerrno>
#include <span>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/file_lock.h>
#include <terrace/core/base/files.h>
#include <terrace/core/base/folders.h>
#include <terrace/core/base/notice.h>
#include <terrace/core/base/units.h>
#include <terrace/core/machine/machine.h>
#include <terrace/examples/lm/unpack/data_stream.h>
#include <terrace/examples/terrace/base/environment.h>
#include <terrace/examples/terrace/config/same_settings.h>
#include <terrace/offload/store/chunk_store.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;

// A large file is identified by a sample and its time, because reading all of it at each start would take long. A copy with
// another time is only processed again. A packed file is identified by its packed bytes.
std::string content_of(const fs::path& file) {
  constexpr std::uint64_t kWhole = kGiB, kSample = 256 * kMiB;
  if (fs::file_size(file) <= kWhole) return describe_content(file, kUnlimited);
  return fmt::format("{} written {}", describe_content(file, kSample), fs::last_write_time(file).time_since_epoch().count());
}

[[noreturn]] void refuse_to_make(const fs::path& what, const std::string& why) {
  throw Error(
      fmt::format("{} cannot be made: {}\n  tokens of data are kept there: mend that, or set XDG_CACHE_HOME to another folder",
                  what.string(), why));
}

}  // namespace

CachedFile::CachedFile(fs::path data, std::string decides, std::string ending)
    : data_(std::move(data)), decides_(std::move(decides)), ending_(std::move(ending)), path_(path_now()) {
  try {
    files::make_folders(path_.parent_path());
  } catch (const Error& error) {
    refuse_to_make(path_.parent_path(), error.what());
  }
}

fs::path CachedFile::path_now() const {
  const auto all = decides_ + content_of(data_);
  return default_profile_path("cpu").parent_path() / "tokens" /
         fmt::format("{}-{:016x}{}", lm::name_of_content(data_).stem().string(), checksum_of(std::as_bytes(std::span(all))),
                     ending_);
}

void CachedFile::demand_same_data() const {
  if (path_now() == path_) return;
  files::remove_path(path_);
  throw Error(
      fmt::format("{} has changed while its tokens were made\n  repeat the command when the file is complete", data_.string()));
}

files::FileHandle CachedFile::lock() const {
  constexpr auto kBetween = std::chrono::milliseconds(50);
  constexpr int kSaysSo = 100;
  const fs::path file = path_.string() + ".lock";
  files::FileHandle lock(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock) refuse_to_make(file, describe_errno(errno));
  for (int waited = 0;; ++waited) {
    const auto state = files::try_lock(lock.get(), LOCK_EX);
    if (state == files::Locked::impossible) files::warn_without_locks({}, file);
    if (state != files::Locked::by_another) return lock;
    if (waited == kSaysSo)
      base::say(stderr, fmt::format("another process makes these tokens and holds {}: waiting for it\n", file.string()));
    std::this_thread::sleep_for(kBetween);
  }
}

MakingNote::MakingNote(std::string_view what, const fs::path& data)
    : what_(fmt::format("{} {}", what, data.string())), said_(std::chrono::steady_clock::now()) {}

bool MakingNote::operator()(std::uint64_t done, std::uint64_t of) {
  constexpr auto kBetween = std::chrono::seconds(5);
  const auto now = std::chrono::steady_clock::now();
  if (now - said_ < kBetween) return false;
  said_ = now;
  base::say(stderr, fmt::format("{}: {} of {}\n", what_, format_bytes(done), format_bytes(of)));
  return true;
}

}  // namespace terrace::cli
