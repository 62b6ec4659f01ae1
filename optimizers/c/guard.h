// What every function of the C interface does at its boundary: no exception passes it, and the thread keeps the error's text.
//
// Threads: any; the text belongs to the calling thread.
#pragma once

#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include <terrace/core/base/error.h>
#include <terrace/optimizers/c/terrace.h>

namespace terrace::c {

// Keeps as much of the text as fits, because memory for a copy may be what is missing.
terrace_status fail(terrace_status status, const char* text) noexcept;
const char* last_failure() noexcept;
terrace_status status_of(ErrorKind kind) noexcept;
// Of the exception that is being handled.
terrace_status caught() noexcept;

template <class Body>
terrace_status guarded(Body&& body) noexcept {
  try {
    body();
    return TERRACE_OK;
  } catch (...) {
    return caught();
  }
}

// The program's structure as this library knows it. One of an older program ends earlier: the rest is zero. Of a newer
// program's, fields that this library does not know must be zero.
template <class T>
T known(const T* given, const char* name) {
  if (!given) throw std::logic_error(std::string(name) + " is null");
  constexpr std::size_t kLeast = sizeof(std::size_t);
  const std::size_t size = given->struct_size;
  if (size <= kLeast || size > 4096)
    throw std::logic_error(std::string(name) + " has struct_size " + std::to_string(size) +
                           "\n  initialise it with TERRACE_INIT(" + name + ")");
  T result{};
  std::memcpy(&result, given, size < sizeof(T) ? size : sizeof(T));
  const auto* const bytes = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t i = sizeof(T); i < size; ++i)
    if (bytes[i] != 0)
      throw Error(std::string(name) + " sets a field that this library does not know\n  use a newer libterrace.so",
                  ErrorKind::refused);
  return result;
}

// Writes as many bytes of `result` as the program's structure has.
template <class T>
void give(T result, T* to, const char* name) {
  result.struct_size = known(to, name).struct_size;
  std::memcpy(to, &result, result.struct_size < sizeof(T) ? result.struct_size : sizeof(T));
}

template <class T>
T& there(T* pointer, const char* name) {
  if (!pointer) throw std::logic_error(std::string(name) + " is null");
  return *pointer;
}

}  // namespace terrace::c
