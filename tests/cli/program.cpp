#include <terrace/tests/cli/program.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

extern char** environ;

namespace terrace::test {
namespace {

constexpr int kHangMilliseconds = 480'000;  // silence of this length is a hang, even on a busy machine with a sanitizer
constexpr int kPipeBytes = 4096;

void require(bool good, const char* what) {
  if (!good) throw std::system_error(errno, std::generic_category(), what);
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> environment_of(const Launch& launch) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    if (!launch.environment.contains(text.substr(0, text.find('=')))) all.push_back(text);
  }
  for (const auto& [name, value] : launch.environment)
    if (!value.empty()) all.push_back(name + '=' + value);
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (auto& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

}  // namespace

std::vector<std::string> Outcome::lines() const { return split(out); }

std::string Outcome::last_line() const {
  const auto all = lines();
  return all.empty() ? "" : all.back();
}

std::size_t Outcome::warnings(const std::string& about) const {
  const auto all = split(err);
  return static_cast<std::size_t>(std::ranges::count_if(
      all, [&](const std::string& line) { return line.starts_with("warning:") && line.find(about) != std::string::npos; }));
}

Child::Child(const Launch& launch) {
  std::vector<std::string> words{launch.program.string()};
  words.insert(words.end(), launch.arguments.begin(), launch.arguments.end());
  for (const auto& word : words) command_ += (command_.empty() ? "" : " ") + word;
  auto environment = environment_of(launch);
  const auto argv = pointers(words), envp = pointers(environment);
  std::array<int, 2> out{}, err{};
  require(::pipe2(out.data(), O_CLOEXEC) == 0 && ::pipe2(err.data(), O_CLOEXEC) == 0, "pipe");
  require(::fcntl(out[1], F_SETPIPE_SZ, kPipeBytes) >= 0, "pipe size");

  pid_ = ::fork();
  require(pid_ >= 0, "fork");
  if (pid_ == 0) {
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(err[1], STDERR_FILENO);
    if (!launch.folder.empty() && ::chdir(launch.folder.c_str()) != 0) ::_exit(kNotPermitted);
    if (launch.in_child) launch.in_child();
    ::execve(argv[0], argv.data(), envp.data());
    ::_exit(kNotPermitted);
  }
  ::close(out[1]);
  ::close(err[1]);
  out_ = {out[0], &outcome_.out};
  err_ = {err[0], &outcome_.err};
}

Child::~Child() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  for (const auto* pipe : {&out_, &err_})
    if (pipe->fd >= 0) ::close(pipe->fd);
}

void Child::read_some(std::vector<Pipe*> pipes) {
  if (!read_within(std::move(pipes), kHangMilliseconds))
    throw std::runtime_error("hangs: " + command_ + "\n" + outcome_.out + outcome_.err);
}

// Returns false if nothing came in time.
bool Child::read_within(std::vector<Pipe*> pipes, int milliseconds) {
  std::erase_if(pipes, [](const Pipe* pipe) { return pipe->fd < 0; });
  std::vector<pollfd> polled;
  for (const auto* pipe : pipes) polled.push_back({pipe->fd, POLLIN, 0});
  const int ready = ::poll(polled.data(), polled.size(), milliseconds);
  if (ready < 0 && errno == EINTR) return true;
  require(ready >= 0, "poll");
  if (ready == 0) return false;
  for (std::size_t i = 0; i < pipes.size(); ++i) {
    if (polled[i].revents == 0) continue;
    std::array<char, kPipeBytes> buffer{};
    const auto n = ::read(pipes[i]->fd, buffer.data(), buffer.size());
    if (n > 0) pipes[i]->into->append(buffer.data(), static_cast<std::size_t>(n));
    if (n == 0) ::close(std::exchange(pipes[i]->fd, -1));
  }
  return true;
}

void Child::read_lines(std::size_t count) {
  while (static_cast<std::size_t>(std::ranges::count(outcome_.out, '\n')) < count) {
    if (out_.fd < 0) throw std::runtime_error("ended early: " + command_ + "\n" + outcome_.out + outcome_.err);
    read_some({&out_, &err_});
  }
}

void Child::close_output() { ::close(std::exchange(out_.fd, -1)); }

void Child::send(int signal) const {
  if (pid_ <= 0) throw std::logic_error("a signal for a child that has ended would go to others");
  require(::kill(pid_, signal) == 0, "kill");
}

void Child::send_to_group(int signal) const {
  if (pid_ <= 0) throw std::logic_error("a signal for a child that has ended would go to others");
  require(::kill(-pid_, signal) == 0, "kill");
}

Outcome Child::kill_after(std::chrono::nanoseconds time, const std::function<void()>& before) {
  using std::chrono::steady_clock;
  const auto end = steady_clock::now() + time;
  while (out_.fd >= 0 || err_.fd >= 0) {
    const auto left = end - steady_clock::now();
    if (left.count() <= 0) break;
    read_within({&out_, &err_}, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
  }
  before();
  send(SIGKILL);  // no effect if it has ended but was not waited for
  return wait();
}

Outcome Child::wait() {
  while (out_.fd >= 0 || err_.fd >= 0) read_some({&out_, &err_});
  int status = 0;
  require(::waitpid(std::exchange(pid_, -1), &status, 0) > 0, "waitpid");
  if (WIFEXITED(status)) outcome_.exit = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome_.signal = WTERMSIG(status);
  outcome_.described = command_ + "\n-> exit " + std::to_string(outcome_.exit) + ", signal " + std::to_string(outcome_.signal) +
                       "\n" + outcome_.out + outcome_.err;
  return std::move(outcome_);
}

Outcome run(const Launch& launch) { return Child(launch).wait(); }

std::optional<Outcome> run_on_terminal(Launch launch, unsigned short columns) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || ::grantpt(terminal) != 0 || ::unlockpt(terminal) != 0) return std::nullopt;
  const std::string name = ::ptsname(terminal);
  launch.in_child = [&] {
    const int fd = ::open(name.c_str(), O_RDWR | O_NOCTTY);
    const winsize size{24, columns, 0, 0};
    if (fd < 0 || ::ioctl(fd, TIOCSWINSZ, &size) != 0 || ::dup2(fd, STDOUT_FILENO) < 0) ::_exit(kNotPermitted);
  };
  Child child(launch);
  std::string text;
  char buffer[4096];
  std::thread reader([&] {  // ends when the child ends, because the child has the last open end
    for (ssize_t n = 0; (n = ::read(terminal, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(n));
  });
  auto outcome = child.wait();
  reader.join();
  ::close(terminal);
  outcome.out = std::move(text);
  return outcome;
}

}  // namespace terrace::test
