#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string_view>

#include <terrace/core/base/error.h>
#include <terrace/examples/terrace/base/commit_signal.h>
#include <terrace/examples/terrace/base/launched.h>
#include <terrace/examples/terrace/cli/command_line.h>
#include <terrace/examples/terrace/commands/commands.h>
#include <terrace/examples/terrace/config/exit_codes.h>
#include <terrace/examples/terrace/ranks/rank_pipe.h>

namespace {

using namespace terrace;
using namespace terrace::cli;

// Flushes the output, which may still be buffered: its disk may be full.
int printed(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  if (errno == EPIPE) return code;  // the reader has closed the pipe
  std::fprintf(stderr, "error: the output could not be written: %s\n", describe_errno(errno).c_str());
  return code == 0 ? static_cast<int>(Exit::runtime) : code;
}

// If the parent closed a standard descriptor, the next opened file would get its number, and messages would be written into a
// store.
void occupy_standard_descriptors() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor)
    if (::fcntl(descriptor, F_GETFD) < 0 && errno == EBADF) ::open("/dev/null", O_RDONLY);  // takes the lowest free number
}

// The last line of defence: handles an exception that nothing caught, in a library's thread or a destructor. Committed state is
// intact, and a core dump would help no user. Needs no memory.
[[noreturn]] void end_without_abort() {
  constexpr std::string_view kMemory = "error: no memory is left for the program itself";
  constexpr std::string_view kOther = "error: an exception was not caught, which is a bug in terrace or one of its libraries";
  constexpr std::string_view kAdvice = "\n  the last commit is intact; remove the cause, then --resume auto\n";
  const auto write_all = [](std::string_view text) { static_cast<void>(!::write(STDERR_FILENO, text.data(), text.size())); };
  try {
    if (const auto error = std::current_exception()) std::rethrow_exception(error);
    write_all(kOther);
  } catch (const std::bad_alloc&) {
    write_all(kMemory);
  } catch (const std::exception& error) {
    write_all(kOther);
    write_all(": ");
    write_all(error.what());
  } catch (...) {
    write_all(kOther);
  }
  write_all(kAdvice);
  ::_exit(static_cast<int>(Exit::runtime));
}

}  // namespace

int main(int words, char** given) {
  remember_commit_requests();
  std::set_terminate(end_without_abort);
  occupy_standard_descriptors();
  hold_rank_pipe();
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond `ulimit -f` is an error, and does not end the process
  try {
    const auto meant = without_help_command(words, given);
    const auto argc = static_cast<int>(meant.size());
    const auto* const* const argv = meant.data();
    if (const auto* const own = argc > 1 ? find_command(argv[1]) : nullptr; own && own->run_words)
      return printed(static_cast<int>(own->run_words(argc - 1, argv + 1)));
    const auto line = parse(argc, argv);
    if (!line.answer.empty()) {
      std::fputs(line.answer.c_str(), stdout);
      return printed(0);
    }
    return printed(static_cast<int>(find_command(line.command)->run(line)));
  } catch (const std::exception& error) {
    if (std::string_view(error.what()).substr(0, 5) != "rank ")
      let_first_rank_speak();  // an error that names its rank is not common to all ranks
    const int code = report_error(error, stderr);
    if (std::string_view(error.what()).find(kAnotherRankFailed) == std::string_view::npos) tell_rank_pipe(code);
    return code;
  }
}
