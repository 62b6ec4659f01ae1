// Combines every fault of a disk with every kind of request of a run: reads and writes of chunks, the commit, the
// preallocation. Each cell ends with the undisturbed run's weights, or with one error that says on what, where and why; nothing
// hangs. What is then on disk resumes to the undisturbed run's weights, or an error names the lost chunk.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <ostream>
#include <random>
#include <thread>

#include <fmt/format.h>

#include <terrace/offload/store/extent_files.h>
#include <terrace/tests/doubles/simulated_disk.h>
#include <terrace/tests/support/environment.h>
#include <terrace/tests/support/faulty_files.h>
#include <terrace/tests/support/toy_run.h>

namespace terrace {
namespace {

using namespace std::chrono_literals;
using test::FaultyFiles;
using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr std::array kFaults{"EIO",       "ENOSPC", "short",       "zero-length", "delayed",     "never",
                             "reordered", "torn",   "flipped-bit", "stale",       "misdirected", "EDQUOT"};
constexpr std::array kCalls{"read", "write", "commit", "preallocation"};
constexpr std::uint64_t kSteps = 3;
constexpr std::uint64_t kFirstCommit = 1, kSecondCommit = 2;
constexpr auto kDelay = 5s;
// The deadline of files holds for every call, and some calls are slow on a busy disk.
constexpr auto kShortDeadline = 1s, kShortFileDeadline = 5s;

struct Cell {
  std::string fault, call;
  [[nodiscard]] std::string name() const {
    auto text = call + "_" + fault;
    std::ranges::replace(text, '-', '_');
    return text;
  }
};
void PrintTo(const Cell& cell, std::ostream* out) { *out << cell.name(); }

std::vector<Cell> all_cells() {
  std::vector<Cell> all;
  for (const auto* call : kCalls)
    for (const auto* fault : kFaults) all.push_back({fault, call});
  return all;
}

// The number of places at which each fault is tried; TERRACE_FAULT_POINTS in the environment overrides it.
std::uint64_t points() { return test::number_from_environment("TERRACE_FAULT_POINTS", 3); }
std::uint64_t first_seed() { return test::number_from_environment("TERRACE_FAULT_SEED", 1); }

struct Ended {
  std::string error;  // empty: none
  std::optional<ErrorKind> kind;
  std::uint64_t hash = 0;
  ErrorFacts facts = {};
};

class FaultMatrix : public testing::TestWithParam<Cell> {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::absolute("fault-matrix") / GetParam().name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    options_.steps = kSteps;
    options_.disk_tier = true;
    auto unlimited = options_;
    unlimited.disk_tier = false;
    const auto smallest = plan(toy::make_model(options_.sizes), toy::request_of(unlimited), MachineProfile{}).smallest_bytes;
    options_.budget = {smallest[Tier::device], 768 * kKiB, 256 * kMiB};
    options_.store = folder_;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static Ended train(const toy::RunOptions& o, const std::function<void(Engine&)>& after_steps = {}) {
    try {
      toy::Training t(o);
      while (t.steps_done() < kSteps) {
        t.step();
        if (t.steps_done() == kFirstCommit || t.steps_done() == kSecondCommit) t.trainer->commit();
      }
      t.trainer->commit();
      if (after_steps) after_steps(*t.engine);
      return {"", std::nullopt, t.hash()};
    } catch (const Error& error) {
      return {error.what(), error.kind(), 0, error.facts()};
    }
  }

  [[nodiscard]] std::filesystem::path data() const { return folder_ / "store" / "data"; }
  [[nodiscard]] ChunkStore::Options store() const { return {.paths = {folder_}}; }
  void start_afresh() const { std::filesystem::remove_all(folder_ / "store"); }

  void in_the_engine();
  void in_the_files();
  void goes_on(std::uint64_t hash, toy::RunOptions o, bool may_be_lost);
  [[nodiscard]] std::string lost_chunk() const;
  void wait_until_free() const;

  std::filesystem::path folder_;
  toy::RunOptions options_;
};

// An abandoned request holds the store's lock until it ends.
void FaultMatrix::wait_until_free() const {
  const files::FileHandle lock(::open((folder_ / "store" / "lock").c_str(), O_RDWR | O_CLOEXEC));
  for (int i = 0; i < 600; ++i) {
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return;
    std::this_thread::sleep_for(100ms);
  }
  FAIL() << "the store is never free again";
}

// Empty if every committed chunk can be read.
std::string FaultMatrix::lost_chunk() const {
  const auto opened = ChunkStore::open(store());
  std::vector<std::byte> bytes;
  for (const auto& chunk : opened->committed()) {
    bytes.resize(chunk.description.bytes);
    try {
      opened->read_committed(chunk, bytes);
    } catch (const Error& error) {
      EXPECT_EQ(ErrorKind::corrupt, error.kind());
      return error.what();
    }
  }
  return {};
}

// Resumes without a fault from what is on disk now.
void FaultMatrix::goes_on(std::uint64_t hash, toy::RunOptions o, bool may_be_lost) {
  wait_until_free();
  o.file_ops = nullptr;
  o.deadline = io::kIoDeadline;
  o.resume = ChunkStore::has_commit(store());
  const auto lost = o.resume ? lost_chunk() : "";
  if (!lost.empty()) {
    EXPECT_TRUE(may_be_lost) << lost;
    EXPECT_THAT(lost, AllOf(StartsWith("chunk "), HasSubstr("is not what was written"), HasSubstr(data().string())));
    return;
  }
  const auto ended = train(o);
  EXPECT_EQ("", ended.error);
  EXPECT_EQ(hash, ended.hash);
}

struct EngineFault {
  SimulatedFault::What what{};
  int error_number = 0;
  std::string says = {};  // text of the error; empty: the run does not notice the fault
  bool silent = false;    // success is reported, and bytes are wrong
};
std::optional<EngineFault> engine_fault(const Cell& cell) {
  using What = SimulatedFault::What;
  const bool reading = cell.call == "read";
  if (cell.fault == "EIO") return EngineFault{What::error, EIO, "Input/output error (errno 5)"};
  if (cell.fault == "ENOSPC") return EngineFault{What::error, ENOSPC, "No space left on device (errno 28)"};
  if (cell.fault == "EDQUOT") return EngineFault{What::error, EDQUOT, "Disk quota exceeded (errno 122)"};
  if (cell.fault == "short") return EngineFault{What::short_transfer};
  if (cell.fault == "zero-length")
    return EngineFault{What::zero_length, 0, reading ? "No data available (errno 61)" : "No space left on device (errno 28)"};
  if (cell.fault == "delayed") return EngineFault{What::never};  // until let_stuck_requests_end()
  if (cell.fault == "never") return EngineFault{What::never, 0, "Timer expired (errno 62)"};
  if (cell.fault == "torn") return EngineFault{What::torn, 0, "checksum", true};
  if (cell.fault == "flipped-bit") return EngineFault{What::flip_bit, 0, "checksum", true};
  if (cell.fault == "stale") return EngineFault{What::stale, 0, "checksum", true};
  if (cell.fault == "misdirected") return EngineFault{What::misdirected, 0, "checksum", true};
  return std::nullopt;  // reordered: requests end in another order with every seed
}

void FaultMatrix::in_the_engine() {
  const auto& cell = GetParam();
  const auto op = cell.call == "read" ? IoRequest::Op::read : IoRequest::Op::write;
  std::shared_ptr<SimulatedDisk> disk;
  const auto simulated = [&](std::uint64_t seed, std::vector<SimulatedFault> faults) {
    return [&disk, seed, faults = std::move(faults)](const IoOptions& io) {
      if (!disk) {
        struct stat info {};
        EXPECT_EQ(0, ::fstat(io.files.at(0), &info));
        disk = make_simulated_disk(1, static_cast<std::uint64_t>(info.st_size));
      }
      return make_simulated_engine(disk, seed, faults);
    };
  };
  auto o = options_;
  o.make_io = simulated(first_seed(), {});
  std::uint64_t in_all = 0;
  const auto whole = train(o, [&](Engine& e) { in_all = op == IoRequest::Op::read ? e.moved().reads : e.moved().writes; });
  ASSERT_EQ("", whole.error);
  ASSERT_GT(in_all, 40U);  // one request a move: chunks are far smaller than a request may be

  const auto fault = engine_fault(cell);
  const auto places = cell.fault == "delayed" || cell.fault == "never" ? 1 : points();
  for (std::uint64_t seed = first_seed(); seed < first_seed() + places; ++seed) {
    const auto at = std::mt19937_64(seed)() % in_all;
    SCOPED_TRACE(fmt::format("TERRACE_FAULT_SEED={}: at {} {} of {}", seed, cell.call, at, in_all));
    start_afresh();
    disk = make_simulated_disk(1, disk->file(0).size());
    std::vector<SimulatedFault> faults;
    if (fault) faults.push_back({at, fault->what, fault->error_number, op});
    o.make_io = simulated(seed + 1, faults);
    o.deadline = cell.fault == "never" ? kShortDeadline : io::kIoDeadline;
    const auto begin = std::chrono::steady_clock::now();
    std::thread later([&] {
      if (cell.fault != "delayed") return;
      std::this_thread::sleep_for(kDelay);
      disk->let_stuck_requests_end();
    });
    const auto ended = train(o);
    later.join();
    if (!fault || fault->says.empty()) {
      EXPECT_EQ("", ended.error);
      EXPECT_EQ(whole.hash, ended.hash);
    } else if (fault->silent && op == IoRequest::Op::write && ended.error.empty()) {
      EXPECT_EQ(whole.hash, ended.hash);  // the damaged bytes were not read
    } else {
      EXPECT_THAT(ended.error, StartsWith("chunk "));
      EXPECT_THAT(ended.error, HasSubstr(fmt::format("disk tier, file {}, offset ", data().string())));
      EXPECT_THAT(ended.error, HasSubstr(" bytes: " + fault->says));
      EXPECT_EQ(fault->silent ? ErrorKind::corrupt : ErrorKind::failed, ended.kind);
      EXPECT_EQ(data().string(), ended.facts.path);
      EXPECT_THAT(ended.facts.object, StartsWith("chunk "));
      EXPECT_THAT(ended.error, StartsWith(ended.facts.object));
      EXPECT_EQ(fault->silent, !ended.facts.code);
      if (!fault->silent) {
        EXPECT_THAT(ended.error, HasSubstr(describe_errno(ended.facts.code.value())));
      }
    }
    if (cell.fault == "delayed") {
      EXPECT_GE(std::chrono::steady_clock::now() - begin, kDelay);
    }

    // The request ends at last, long after the run that made it: its memory must still be there, and its store still locked.
    disk->let_stuck_requests_end();
    if (cell.fault == "never") {
      for (int i = 0; i < 600 && disk->late_ends() == 0; ++i) std::this_thread::sleep_for(100ms);
      ASSERT_EQ(1U, disk->late_ends());
    }
    wait_until_free();
    const files::FileHandle file(::open(data().c_str(), O_WRONLY | O_CLOEXEC));
    const auto bytes = disk->file(0);
    ASSERT_EQ(static_cast<ssize_t>(bytes.size()), ::pwrite(file.get(), bytes.data(), bytes.size(), 0));
    o.make_io = simulated(seed + 2, {});
    goes_on(whole.hash, o, fault && fault->silent && op == IoRequest::Op::write);
  }
}

struct FilesFault {
  FaultyFiles::What what{};
  int error_number = EIO;
  std::string says = {};  // text of the error; empty: the fault is not noticed at once
};
FilesFault files_fault(const Cell& cell) {
  using What = FaultyFiles::What;
  const bool space = cell.call == "preallocation";
  if (cell.fault == "EIO") return {What::error, EIO, "Input/output error (errno 5)"};
  if (cell.fault == "ENOSPC") return {What::error, ENOSPC, space ? "not enough space" : "No space left on device (errno 28)"};
  if (cell.fault == "EDQUOT") return {What::error, EDQUOT, "Disk quota exceeded (errno 122)"};
  if (cell.fault == "short") return {What::half, 0, space ? "bytes were reserved, but the file has" : ""};
  if (cell.fault == "zero-length")
    return {What::nothing, 0, space ? "bytes were reserved, but the file has 0" : "No space left on device (errno 28)"};
  if (cell.fault == "delayed") return {What::late, 0, ""};
  if (cell.fault == "never") return {What::never, 0, "Timer expired (errno 62)"};
  if (cell.fault == "reordered") return {What::held, 0, ""};
  if (cell.fault == "torn") return {What::torn, 0, ""};
  if (cell.fault == "flipped-bit") return {What::flipped, 0, ""};
  if (cell.fault == "stale") return {What::lost, 0, ""};
  return {What::misdirected, 0, space ? "bytes were reserved, but the file has 0" : ""};
}

// Real files, in a store that syncs its commits.
void FaultMatrix::in_the_files() {
  const auto& cell = GetParam();
  const bool committing = cell.call == "commit";
  auto o = options_;
  o.durable = true;
  const auto counted = std::make_shared<FaultyFiles>();
  o.file_ops = counted;
  const auto whole = train(o);
  ASSERT_EQ("", whole.error);
  ASSERT_EQ(1U, counted->calls(FaultyFiles::Call::allocate));
  ASSERT_EQ(3 * 4U, counted->calls(FaultyFiles::Call::rename));

  const auto fault = files_fault(cell);
  using What = FaultyFiles::What;
  std::vector<FaultyFiles::Call> calls{FaultyFiles::Call::allocate};
  if (committing) calls = {FaultyFiles::Call::write};
  const bool any_call = fault.what == What::error || fault.what == What::late || fault.what == What::never;
  if (committing && any_call)
    calls.insert(calls.end(), {FaultyFiles::Call::create, FaultyFiles::Call::sync, FaultyFiles::Call::rename});
  if (committing && (fault.what == What::lost || fault.what == What::misdirected)) calls.push_back(FaultyFiles::Call::rename);
  const auto places = any_call && fault.what != What::error ? 1 : points();
  start_afresh();
  const auto made = std::make_shared<FaultyFiles>();  // a store without a commit
  ChunkStore::create({.paths = {folder_}, .capacity_bytes = kPageBytes, .file_ops = made});

  for (std::uint64_t seed = first_seed(); seed < first_seed() + places; ++seed) {
    std::mt19937_64 random(seed);
    const auto call = calls[random() % calls.size()];
    // In the second or third commit, so that there is a previous one.
    const auto in_all = counted->calls(call), before = made->calls(call);
    const auto first = committing ? before + (in_all - before) / 3 : 0;
    const auto at = first + random() % (in_all - first);
    SCOPED_TRACE(fmt::format("TERRACE_FAULT_SEED={}: at call {} of kind {}, of {}", seed, at, static_cast<int>(call), in_all));
    start_afresh();
    const auto files = std::make_shared<FaultyFiles>(
        FaultyFiles::Fault{.call = call, .at = at, .what = fault.what, .error_number = fault.error_number, .delay = kDelay});
    o.file_ops = files;
    o.deadline = cell.fault == "never" ? kShortFileDeadline : io::kIoDeadline;
    const auto ended = train(o);
    EXPECT_TRUE(files->struck());
    if (fault.says.empty()) {
      EXPECT_EQ("", ended.error);
      EXPECT_EQ(whole.hash, ended.hash);
    } else {
      if (committing) {
        EXPECT_THAT(ended.error, AnyOf(StartsWith("commit 2 (step 2) could not"), StartsWith("commit 3 (step 3) could not")));
      }
      EXPECT_THAT(ended.error, HasSubstr((folder_ / "store").string()));
      EXPECT_THAT(ended.error, HasSubstr(fault.says));
      EXPECT_EQ(cell.fault == "ENOSPC" && !committing ? ErrorKind::does_not_fit : ErrorKind::failed, ended.kind);
      EXPECT_THAT(ended.facts.path, StartsWith((folder_ / "store").string()));
      EXPECT_TRUE(ended.facts.code);
      if (ended.kind == ErrorKind::failed) {
        EXPECT_THAT(ended.error, HasSubstr(describe_errno(ended.facts.code.value())));
      }
      EXPECT_EQ(committing, ChunkStore::has_commit(store()));
    }
    files->let_stuck_calls_end();
    goes_on(whole.hash, o, false);
  }
}

TEST_P(FaultMatrix, EndsWell) {
  if (GetParam().call == "read" || GetParam().call == "write") {
    in_the_engine();
  } else {
    in_the_files();
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, FaultMatrix, testing::ValuesIn(all_cells()), [](const auto& of) { return of.param.name(); });

}  // namespace
}  // namespace terrace
