#pragma once
// What tests give a Learner.

#include "src/measure/trace.hpp"
#include "src/run/learner.hpp"
#include "tests/support/environment.hpp"

namespace nanorun {

/// The streams of test_context, for tests that run on devices too: once device_ready().
inline Streams test_streams() {
  return {test_context->stream(), test_context->comm_stream(), test_context->upload_stream()};
}

}  // namespace nanorun
