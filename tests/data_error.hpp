#pragma once
// Errors of what the program reads.

#include <gtest/gtest.h>

#include <string>

#include "src/error.hpp"

namespace nanorun {

/// The message, one line, of the Error of this code that `body` throws; empty if it throws none.
template <class Body>
std::string data_error_of(Body&& body, ExitCode code = ExitCode::data) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "";
}

}  // namespace nanorun
