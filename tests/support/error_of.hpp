#pragma once
// Messages of errors.

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "src/base/error.hpp"

namespace nanorun {

/// The message, one line, of the Error of this code, and scope where given, that `body` throws; empty if it throws
/// none.
template <class Body>
std::string error_of(Body&& body, ExitCode code = ExitCode::data, std::optional<Scope> scope = {}) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_EQ(error.scope(), scope.value_or(error.scope()));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "";
}

/// What is to blame for the Error that `body` must throw.
template <class Body>
Cause cause_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.cause();
  }
  ADD_FAILURE() << "no error";
  return Cause::other;
}

/// The message of all ranks, where `body` must throw one.
template <class Body>
std::string error_on_all_ranks(ExitCode code, Body&& body) {
  std::string message = error_of(body, code, Scope::all_ranks);
  EXPECT_NE(message, "") << "no error";
  return message;
}

}  // namespace nanorun
