// Templates that try to hang, to use all memory or to overflow the stack, each in a separate process.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <system_error>

#include <terrace/tests/fuzz/hostile_templates.h>
#include <terrace/tests/fuzz/template_texts.h>

namespace terrace::test {
namespace {

constexpr rlim_t kMostSeconds = 10;
constexpr std::uint64_t kMostMemory = std::uint64_t{512} << 20;

struct Ended {
  int status = 0;
  std::uint64_t peak_resident_bytes = 0;
};

// A text or a Fault is a good end. Another exception, or exceeding the processor time, is not.
Ended written_apart(const std::string& source) {
  const pid_t child = ::fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child == 0) {
    const rlimit seconds{kMostSeconds, kMostSeconds};
    ::setrlimit(RLIMIT_CPU, &seconds);
    try {
      check_template_text({reinterpret_cast<const std::uint8_t*>(source.data()), source.size()}, lm::jinja::kMostSteps);
    } catch (...) {
      ::_exit(EXIT_FAILURE);
    }
    ::_exit(EXIT_SUCCESS);
  }
  Ended out;
  rusage usage{};
  while (::wait4(child, &out.status, 0, &usage) < 0)
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "wait4");
  out.peak_resident_bytes = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
  return out;
}

unsigned number_of(const char* variable, unsigned otherwise) {
  const auto* const value = std::getenv(variable);
  return value == nullptr ? otherwise : static_cast<unsigned>(std::strtoul(value, nullptr, 10));
}

// The long form draws 2,000 templates (TERRACE_TEMPLATES, TERRACE_TEMPLATE_SEED).
TEST(HostileTemplates, EndWithinTheirTimeAndMemory) {
  const auto seed = number_of("TERRACE_TEMPLATE_SEED", 20261128), count = number_of("TERRACE_TEMPLATES", 24);
  HostileTemplates templates(seed);
  std::uint64_t greatest = 0;
  for (unsigned i = 0; i < count; ++i) {
    const auto source = templates.next();
    const auto [status, bytes] = written_apart(source);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS)
        << "seed " << seed << ", template " << i << (WIFSIGNALED(status) ? ", signal " + std::to_string(WTERMSIG(status)) : "")
        << "\n"
        << source;
    greatest = std::max(greatest, bytes);
    if (!TERRACE_SANITIZED) {
      EXPECT_LT(bytes, kMostMemory) << "seed " << seed << ", template " << i << "\n" << source;
    }
  }
  RecordProperty("peak_resident_mib", std::to_string(greatest >> 20));
}

}  // namespace
}  // namespace terrace::test
