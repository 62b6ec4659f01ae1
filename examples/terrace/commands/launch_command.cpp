// terrace launch -n 4 -- train …: starts mpirun on this machine and stays its parent.
//
// mpirun alone kills the ranks a second after Ctrl-C or SIGTERM, and prints its own paragraphs over the error of a rank.
// Therefore it runs here in its own process group, which Ctrl-C does not reach. A stop signal is forwarded as SIGUSR2, which
// mpirun passes on to the ranks (stop_signal.h), and SIGUSR1 as it is (commit_signal.h). The standard error of mpirun and the
// ranks goes through ErrorOutput. Standard output is inherited.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <terrace/core/base/notice.h>
#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/units.h>
#include <terrace/core/machine/machine.h>
#include <terrace/examples/terrace/base/launched.h>
#include <terrace/examples/terrace/cli/help_text.h>
#include <terrace/examples/terrace/commands/commands.h>
#include <terrace/examples/terrace/ranks/rank_pipe.h>
#include <terrace/offload/store/extent_files.h>

namespace terrace::cli {
namespace {

constexpr const char* kAboutLaunch =
    "start several ranks of train, or of another command, on this machine with mpirun, with the options that root and few "
    "cores "
    "need";
constexpr const char* kNotesOnLaunch =
    "An error is printed once. Ctrl-C, SIGTERM and SIGHUP stop a training run cleanly: the ranks commit, and launch exits with "
    "75. SIGUSR1 makes them commit after the current step and go on. For several machines use mpirun or srun directly: terrace "
    "reads its rank from the environment.";

constexpr int kFlushMilliseconds = 100;  // how long a block of lines may wait for its next line

std::string own_program() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "terrace" : self.string();
}

int ranks_of(std::string_view text) {
  int n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc{} || end != text.data() + text.size() || n < 1)
    throw base::Refused(
        fmt::format("launch -n: \"{}\" is not accepted\n  -n takes the number of ranks, an integer of at least 1", text));
  return n;
}

// Throws if Open MPI has no room for its files: the ranks would crash, and mpirun might wait for them for ever.
void demand_room(const std::string& folder, std::uint64_t bytes, const std::string& use, const std::string& more, int ranks) {
  struct statvfs space {};
  if (::access(folder.c_str(), W_OK) != 0 || ::statvfs(folder.c_str(), &space) != 0) return;  // mpirun reports that itself
  const auto free_bytes = std::uint64_t{space.f_bavail} * space.f_frsize;
  if (free_bytes >= bytes) return;
  throw Error(
      fmt::format("launch: {} has {} free, and Open MPI {} there\n  remove files there until {} are free, or {}; train --dp {} "
                  "needs none of it",
                  base::printable(folder), format_bytes(free_bytes), use, format_bytes(bytes), more, ranks));
}

// Open MPI 4.1 makes a file of this size for each rank, most of it a hole.
constexpr std::uint64_t kSegmentBytes = 4 * kMiB + kPageBytes;

void demand_shared_memory(int ranks) {
  for (const auto* const other : {"OMPI_MCA_btl", "OMPI_MCA_btl_vader_backing_directory"})
    if (ranks == 1 || std::getenv(other)) return;
  demand_room("/dev/shm", kSegmentBytes, "exchanges messages", "raise its size (docker run --shm-size=1g)", ranks);
}

// Open MPI fills two files of 4 MiB and some smaller ones for each job.
constexpr std::uint64_t kJobBytes = 9 * kMiB;

void demand_room_for_job(int ranks) {
  std::filesystem::path folder = "/tmp";
  for (const auto* const name : {"TMP", "TEMP", "TMPDIR", "OMPI_MCA_orte_tmpdir_base"})
    if (const auto* const given = std::getenv(name); given && *given) folder = std::filesystem::absolute(given);
  std::error_code error;
  while (!std::filesystem::exists(folder, error) && folder.has_relative_path())
    folder = folder.parent_path();  // mpirun makes it
  demand_room(folder.string(), kJobBytes, "keeps files of its job", "name a folder with more room in TMPDIR", ranks);
}

// Filters what mpirun and the ranks write to standard error:
//  - An error or a warning is a block: its first line, and the indented lines after it. A block that several ranks write is
//    printed once.
//  - "another rank failed" is only a consequence. It is printed at the end, if nothing else tells the reason.
//  - mpirun's own paragraphs, which are between two lines of dashes, are printed at the end, if no rank has printed an error.
//    The paragraph about a rank that a signal ended is printed in terrace's words.
class ErrorOutput {
 public:
  void take(std::string_view bytes) {
    text_ += bytes;
    for (auto end = text_.find('\n'); end != std::string::npos; end = text_.find('\n')) {
      line(text_.substr(0, end));
      text_.erase(0, end + 1);
    }
  }
  // After a pause in the output, the last block is complete, unless its last line is incomplete.
  void pause() {
    if (text_.empty()) end_block();
  }
  void finish(bool failed) {
    if (!text_.empty()) line(std::exchange(text_, {}));
    end_block();
    if (!failed || said_error_) return;
    const auto killed = killed_rank();
    base::say(stderr, !killed.empty() ? killed : !consequence_.empty() ? consequence_ : paragraphs_);
  }

 private:
  void line(const std::string& text) {
    const bool dashes = text.size() > 40 && text.find_first_not_of('-') == std::string::npos;
    const bool aggregated = text.starts_with('[') && text.find("help message") != std::string::npos;
    // "[node:5769] PMIX ERROR: PMIX_ERR_UNREACH in file …": a connection has ended that mpirun was about to close
    const bool internal = text.starts_with('[') && text.find("] PMIX ERROR: ") != std::string::npos;
    const bool of_mpirun = internal || text.starts_with("mpirun: ") || text.starts_with("mpiexec: ");
    if (dashes || in_paragraph_ || aggregated || of_mpirun || text.starts_with("Set MCA parameter")) {
      if (dashes) in_paragraph_ = !in_paragraph_;
      if (!dashes && text.find(": Forwarding signal ") == std::string::npos) paragraphs_ += text + "\n";
      return;
    }
    const bool begins = text.starts_with("error: ") || text.starts_with("warning: ");
    if (begins || block_.empty() || !text.starts_with("  ")) end_block();
    if (begins || !block_.empty())
      block_ += text + "\n";
    else
      base::say(stderr, text + "\n");
  }
  void end_block() {
    const auto block = std::exchange(block_, {});
    if (block.empty() || !printed_.insert(without_rank(block)).second) return;
    if (block.find(kAnotherRankFailed) != std::string::npos) {
      if (consequence_.empty()) consequence_ = block;
      return;
    }
    said_error_ = said_error_ || block.starts_with("error: ");
    base::say(stderr, block);
  }
  // Finds the killed rank in "mpirun noticed that process rank 1 with PID 0 on node n exited on signal 9 (Killed).", wherever
  // its lines are broken. Empty if no rank was killed.
  [[nodiscard]] std::string killed_rank() const {
    static const std::regex kKilled(R"(process rank (\d+) [^.]*exited on\s+signal\s+(\d+) \(([^)]*)\))");
    std::smatch found;
    if (!std::regex_search(paragraphs_, found, kKilled)) return {};
    return fmt::format("error: rank {} was ended by signal {} ({})\n  {}continue from the last commit with --resume auto\n",
                       found[1].str(), found[2].str(), found[3].str(),
                       found[2] == "9" ? "if you did not send it, the machine may have run out of memory: see dmesg; " : "");
  }
  // "error: rank 3: …" is the same error as "error: rank 1: …".
  static std::string without_rank(const std::string& block) {
    constexpr std::string_view kRank = "error: rank ";
    const auto colon = block.find(": ", kRank.size());
    return block.starts_with(kRank) && colon != std::string::npos ? "error" + block.substr(colon) : block;
  }

  std::string text_;   // a line that has not ended
  std::string block_;  // an error or a warning that has not ended
  std::set<std::string> printed_;
  std::string consequence_, paragraphs_;
  bool in_paragraph_ = false, said_error_ = false;
};

// The signals that launch handles, as a file descriptor. SIGHUP stays ignored under nohup.
class Signals {
 public:
  Signals() {
    ::sigemptyset(&set_);
    for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGTSTP, SIGCONT, SIGCHLD}) {
      struct sigaction now {};
      ::sigaction(s, nullptr, &now);
      if (now.sa_handler != SIG_IGN || s == SIGCHLD) ::sigaddset(&set_, s);
    }
    ::signal(SIGCHLD, SIG_DFL);
    ::sigprocmask(SIG_BLOCK, &set_, &before_);
    file_ = files::FileHandle(::signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~Signals() { restore(); }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  void restore() const { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  [[nodiscard]] int descriptor() const { return file_.get(); }
  [[nodiscard]] int next() const {  // 0: no signal is waiting
    signalfd_siginfo info{};
    return ::read(file_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t set_{}, before_{};
  files::FileHandle file_;
};

// Turns the child into mpirun, which has its own process group and ends when launch is killed. If there is no such program, the
// errno goes through `failure`.
[[noreturn]] void become(std::vector<std::string>& words, const Signals& signals, const std::string& rank_pipe, int error_pipe,
                         int failure) {
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  // The kernel stops a background process group that reads from the terminal, and may stop one that writes to it.
  std::signal(SIGTTOU, SIG_IGN);
  std::signal(SIGUSR1, SIG_IGN);  // until mpirun has its own handler
  if (::isatty(STDIN_FILENO) != 0) ::dup2(::open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
  ::dup2(error_pipe, STDERR_FILENO);
  ::setenv(kUnderLaunch, rank_pipe.c_str(), 1);
  // All ranks are on this machine, but Open MPI would still look for network interfaces, and complain of some.
  ::setenv("OMPI_MCA_btl", "^tcp", 0);
  signals.restore();
  ::execvp(pointers.front(), pointers.data());
  const int why = errno;
  [[maybe_unused]] const auto written = ::write(failure, &why, sizeof why);
  ::_exit(static_cast<int>(Exit::hardware_missing));
}

// mpirun ends soon after its last rank, but it has been seen to wait for ever for ranks that died while they started.
constexpr auto kAfterLastRank = std::chrono::seconds(10);
constexpr auto kBeforeKill = std::chrono::seconds(2);  // from SIGTERM on

struct End {
  int status = 0;     // from waitpid()
  int signal = 0;     // the last stop signal that was forwarded; 0: none
  bool hung = false;  // mpirun outlived its ranks, and was ended
};

// False while mpirun must wait for the reader of standard output (a pager, a stopped terminal).
bool takes_output() {
  pollfd output{STDOUT_FILENO, POLLOUT, 0};
  return ::poll(&output, 1, 0) != 0;
}

// Waits until mpirun has ended. Meanwhile forwards signals to it and its errors to `out`. Ends it if it stays without ranks.
End attend(pid_t mpirun, const Signals& signals, RankPipe& ranks, int error_pipe, ErrorOutput& out) {
  using Clock = std::chrono::steady_clock;
  End end;
  std::optional<Clock::time_point> without_ranks;  // since when no rank is left
  const auto end_mpirun_that_hangs = [&] {
    if (!ranks.all_ended() || !takes_output()) return without_ranks.reset();
    const auto now = Clock::now();
    if (!without_ranks) without_ranks = now;
    if (now - *without_ranks < kAfterLastRank) return;
    const bool again = now - *without_ranks >= kAfterLastRank + kBeforeKill;
    if (!end.hung || again) ::kill(-mpirun, again ? SIGKILL : SIGTERM);
    end.hung = true;
  };
  const auto read_errors = [&] {
    std::array<char, 4096> buffer{};
    const auto n = ::read(error_pipe, buffer.data(), buffer.size());
    if (n > 0) out.take({buffer.data(), static_cast<std::size_t>(n)});
    return n > 0;
  };
  for (bool running = true, open = true; running;) {
    std::array<pollfd, 2> polled{{{signals.descriptor(), POLLIN, 0}, {open ? error_pipe : -1, POLLIN, 0}}};
    const int ready = ::poll(polled.data(), polled.size(), kFlushMilliseconds);
    if (ready == 0) out.pause();
    if (ready > 0 && polled[1].revents != 0) open = read_errors();
    end_mpirun_that_hangs();
    for (int s = signals.next(); s != 0; s = signals.next()) {
      if (s == SIGCHLD) {
        running = running && ::waitpid(mpirun, &end.status, WNOHANG) != mpirun;
      } else if (s == SIGTSTP) {  // Ctrl-Z: the ranks stop, and then launch
        ::kill(mpirun, SIGTSTP);
        ::raise(SIGSTOP);
      } else if (s == SIGCONT) {
        without_ranks.reset();
        ::kill(mpirun, SIGCONT);
      } else if (s == SIGUSR1) {
        ::kill(mpirun, SIGUSR1);
      } else {
        end.signal = s;
        ::kill(mpirun, SIGUSR2);
      }
    }
  }
  // Reads what is left in the pipe; a process that outlives mpirun may keep it open.
  for (pollfd rest{error_pipe, POLLIN, 0}; ::poll(&rest, 1, 0) > 0 && read_errors();) {
  }
  return end;
}

struct Pipe {
  files::FileHandle from, to;

  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0)
      throw Error(fmt::format("launch: no pipe can be made: {}", describe_errno(errno)));
    from = files::FileHandle(ends[0]);
    to = files::FileHandle(ends[1]);
  }
};

Exit run(std::vector<std::string> words, int ranks) {
  Pipe errors, failure;
  RankPipe rank_pipe;
  End end;
  ErrorOutput out;
  {
    const Signals signals;
    const auto name_of_rank_pipe = rank_pipe.name();  // the name contains the id of this process
    const auto mpirun = ::fork();
    if (mpirun < 0) throw Error(fmt::format("{} cannot be started: {}", words.front(), describe_errno(errno)));
    if (mpirun == 0) become(words, signals, name_of_rank_pipe, errors.to.get(), failure.to.get());
    errors.to = {};
    failure.to = {};
    if (int why = 0; ::read(failure.from.get(), &why, sizeof why) == sizeof why) {
      ::waitpid(mpirun, nullptr, 0);
      throw Error(
          fmt::format("{} cannot be started: {}\n  install Open MPI (on Debian and Ubuntu: apt install openmpi-bin), or "
                      "train in one process with --dp {}",
                      words.front(), describe_errno(why), ranks),
          ErrorKind::missing);
    }
    end = attend(mpirun, signals, rank_pipe, errors.from.get(), out);
  }
  const bool killed = WIFSIGNALED(end.status);
  int code = killed ? 128 + WTERMSIG(end.status) : WEXITSTATUS(end.status);
  if (const int told = rank_pipe.told_code(); told != 0 && !killed && code != 0) code = told;
  if (end.hung) {
    out.finish(true);
    throw Error(
        fmt::format("{} was still running {} s after its last rank had ended, and was ended\n  if the ranks did not end "
                    "by themselves, they died in their start: see what they and the system (dmesg) say",
                    words.front(), kAfterLastRank.count()));
  }
  const bool stopped = end.signal != 0 && code >= 128;  // by a signal that the ranks did not catch yet, or no longer
  out.finish(code != 0 && code != static_cast<int>(Exit::interrupted) && !stopped);
  if (stopped) {
    std::signal(end.signal, SIG_DFL);
    std::raise(end.signal);
  }
  return static_cast<Exit>(code);
}

CommandText describe_launch() {
  CommandText command{.name = "launch", .help = kAboutLaunch, .notes = kNotesOnLaunch};
  command.flags = {
      {.name = "-n", .value = "RANKS", .help = "number of processes"},
      {.name = "--mpirun", .value = "PROGRAM", .help = "the mpirun to use", .fallback = "mpirun"},
      {.name = "-- COMMAND...", .help = "the command of terrace that each rank runs, with its flags", .word = true}};
  finish(command);
  return command;
}

Exit run_launch(int argc, const char* const* argv) {
  std::optional<int> ranks;
  std::string mpirun = "mpirun";
  int at = 1;
  for (; at < argc && std::string_view(argv[at]) != "--"; ++at) {
    const std::string_view word = argv[at];
    if (word == "-h" || word == "--help") {
      fmt::print("{}", word == "-h" ? brief_help(describe_launch()) : full_help(describe_launch(), help_columns()));
      return Exit::ok;
    }
    if (ranks && !word.starts_with('-')) break;  // the command begins, without -- before it
    if (word != "-n" && word != "--mpirun")
      throw base::Refused(fmt::format("launch: unknown argument {}\n  terrace launch -n RANKS -- COMMAND …", word));
    if (at + 1 == argc) throw base::Refused(fmt::format("launch: {} needs a value\n  see terrace launch --help", word));
    ++at;
    if (word == "-n")
      ranks = ranks_of(argv[at]);
    else
      mpirun = argv[at];
  }
  if (at < argc && std::string_view(argv[at]) == "--") ++at;
  if (!ranks || at >= argc)
    throw base::Refused("launch needs -n, the number of ranks, and a command\n  terrace launch -n RANKS -- COMMAND …");

  // Each rank has several threads, so it is not bound to one core.
  std::vector<std::string> words{mpirun, "-n", std::to_string(*ranks), "--bind-to", "none"};
  if (*ranks > read_topology().cores) words.emplace_back("--oversubscribe");
  if (geteuid() == 0) words.emplace_back("--allow-run-as-root");
  words.push_back(own_program());
  for (int i = at; i < argc; ++i) words.emplace_back(argv[i]);
  demand_shared_memory(*ranks);
  demand_room_for_job(*ranks);
  return run(std::move(words), *ranks);
}

}  // namespace

Command launch_command() {
  return {.name = "launch",
          .help = "start several ranks of train, or of another command, on this machine with mpirun",
          .takes = {"json"},
          .examples = {"terrace launch -n 4 -- train --data book.txt --zero 3",
                       "terrace launch -n 2 -- train --config run.toml --resume auto"},
          .run_words = run_launch,
          .describe = describe_launch};
}

}  // namespace terrace::cli
