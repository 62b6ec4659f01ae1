// The error that a call throws, for tests that compare its text, kind and facts.
//
// Owner:   values. Threads: any. Errors: where Error is asked for, other exceptions pass through.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>

#include <terrace/core/base/error.h>

namespace terrace::test {

// Nothing if the call throws no error.
inline std::optional<Error> error_if_any(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

// Fails the test if the call throws no error.
inline Error thrown_by(const std::function<void()>& call) {
  const auto error = error_if_any(call);
  if (!error) ADD_FAILURE() << "the call ended without an error";
  return error.value_or(Error(""));
}

// The text of any exception, or nothing if the call throws none.
inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}
// An error of another kind fails the test.
inline std::string error_of(ErrorKind kind, const std::function<void()>& call) {
  return error_of([&] {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(kind, error.kind()) << error.what();
      throw;
    }
  });
}
inline std::string refusal_of(const std::function<void()>& call) { return error_of(ErrorKind::refused, call); }

}  // namespace terrace::test
