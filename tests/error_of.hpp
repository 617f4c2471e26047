#pragma once
// Messages of errors.

#include <gtest/gtest.h>

#include <string>

#include "src/error.hpp"

namespace nanorun {

/// The message, one line, of the Error of this code that `body` throws; empty if it throws none.
template <class Body>
std::string error_of(Body&& body, ExitCode code = ExitCode::data) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "";
}

}  // namespace nanorun
