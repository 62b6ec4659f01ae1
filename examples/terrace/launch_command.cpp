// terrace launch -n 4 -- train …: mpirun with what it needs on one machine, in place of this process.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/core/machine.h>
#include <terrace/examples/terrace/commands.h>

namespace terrace::cli {
namespace {

constexpr const char* kHelp =
    "terrace launch -n RANKS [--mpirun PROGRAM] -- COMMAND …\n"
    "Starts `terrace COMMAND …` as so many ranks of this machine with mpirun, and gives it what root and few cores need.\n"
    "Over several machines use mpirun or srun themselves: terrace finds its ranks in their environment.\n"
    "  terrace launch -n 4 -- train --data corpus.txt --zero 3\n";

std::string own_program() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "terrace" : self.string();
}

int ranks_of(std::string_view text) {
  int n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc{} || end != text.data() + text.size() || n < 1)
    throw Error(fmt::format("launch -n: {} is not accepted\n  it takes a number of ranks of at least 1", text), Exit::usage);
  return n;
}

}  // namespace

Exit launch_command(int argc, const char* const* argv) {
  std::optional<int> ranks;
  std::string mpirun = "mpirun";
  int at = 1;
  for (; at < argc && std::string_view(argv[at]) != "--"; ++at) {
    const std::string_view word = argv[at];
    if (word == "-h" || word == "--help") {
      fmt::print("{}", kHelp);
      return Exit::ok;
    }
    if (word != "-n" && word != "--mpirun")
      throw Error(fmt::format("launch: unknown argument {}\n  terrace launch -n RANKS -- COMMAND …", word), Exit::usage);
    if (at + 1 == argc) throw Error(fmt::format("launch: {} takes a value", word), Exit::usage);
    ++at;
    if (word == "-n")
      ranks = ranks_of(argv[at]);
    else
      mpirun = argv[at];
  }
  if (!ranks || at + 1 >= argc)
    throw Error("launch needs a number of ranks and a command\n  terrace launch -n RANKS -- COMMAND …", Exit::usage);

  // Ranks have threads of their own: none is bound to one core.
  std::vector<std::string> words{mpirun, "-n", std::to_string(*ranks), "--bind-to", "none"};
  if (*ranks > read_topology().cores) words.emplace_back("--oversubscribe");
  if (geteuid() == 0) words.emplace_back("--allow-run-as-root");
  words.push_back(own_program());
  for (int i = at + 1; i < argc; ++i) words.emplace_back(argv[i]);
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execvp(pointers.front(), pointers.data());
  throw Error(
      fmt::format("{} cannot be started: {}\n  install Open MPI (on Debian and Ubuntu: apt install openmpi-bin), or train in "
                  "one process with --dp {}",
                  mpirun, describe_errno(errno), *ranks),
      Exit::hardware_missing);
}

}  // namespace terrace::cli
