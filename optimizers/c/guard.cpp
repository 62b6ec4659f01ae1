#include <terrace/optimizers/c/guard.h>

#include <cstdio>

#include <terrace/core/base/version.h>

namespace terrace::c {
namespace {

thread_local char failure_text[4096] = "";

}  // namespace

terrace_status fail(terrace_status status, const char* text) noexcept {
  std::snprintf(failure_text, sizeof failure_text, "%s", text);
  return status;
}

const char* last_failure() noexcept { return failure_text; }

terrace_status status_of(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::failed: return TERRACE_FAILED;
    case ErrorKind::refused: return TERRACE_REFUSED;
    case ErrorKind::does_not_fit: return TERRACE_DOES_NOT_FIT;
    case ErrorKind::missing: return TERRACE_MISSING;
    case ErrorKind::corrupt: return TERRACE_CORRUPT;
    case ErrorKind::interrupted: return TERRACE_INTERRUPTED;
  }
  return TERRACE_FAILED;
}

terrace_status caught() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return fail(status_of(error.kind()), error.what());
  } catch (const std::bad_alloc&) {
    return fail(TERRACE_FAILED, "out of memory\n  lower the budgets, or end other programs");
  } catch (const std::logic_error& error) {
    return fail(TERRACE_MISUSE, error.what());
  } catch (const std::exception& error) {
    return fail(TERRACE_FAILED, error.what());
  } catch (...) {
    return fail(TERRACE_FAILED, "an exception without a text");
  }
}

}  // namespace terrace::c

extern "C" {

uint32_t terrace_abi_version(void) { return TERRACE_ABI_VERSION; }
const char* terrace_version(void) { return terrace::version().data(); }  // a literal
const char* terrace_last_error_message(void) { return terrace::c::last_failure(); }
}
