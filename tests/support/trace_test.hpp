#pragma once
// What the tests of the trace share: steps with known phases, and what the files of a trace hold.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kernels/ops.hpp"
#include "src/measure/trace.hpp"
#include "src/storage/h5.hpp"
#include "tests/support/environment.hpp"

namespace nanorun {

using Integers = std::vector<std::int64_t>;
using Reals = std::vector<double>;

constexpr int index(Phase phase) { return static_cast<int>(phase); }

/// Much longer than a region itself costs, so that time counted twice shows.
inline void work() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

/// Steps [first, last) with nested regions; every phase but `other` gets one work() a step.
inline void run_steps(Trace& trace, long first, long last) {
  for (long step = first; step < last; ++step) {
    trace.begin_step(step);
    {
      Region backward(trace, Phase::backward);
      work();
      {
        Region reduce(trace, Phase::reduce_gradients);
        work();
      }
      {
        Region reduce(trace, Phase::reduce_gradients);
        Region sync(trace, Phase::sync);
        work();
      }
    }
    work();
    trace.end_step(1000.0 + step, 10.0 - step);
  }
}

template <class T>
std::vector<T> read_all(const h5::File& file, const std::string& name) {
  const h5::Extent shape = file.growing_shape(name);
  std::vector<T> values(std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>()));
  file.read<T>(name, h5::Extent(shape.size()), shape, std::span<T>(values));
  return values;
}

/// What trace.h5 holds.
struct Content {
  Integers step, ranks, validation_step, gpu_step;
  Reals tokens, loss, seconds, communication, communication_between, validation_loss, gpu_power, gpu_clock;
  std::vector<std::uint64_t> gpu_reasons;
  std::string phases;
};

class TraceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (ops::device_count() == 0) GTEST_SKIP() << "no device";
    compute_ = ops::create_stream(kernels::Gemms::none);
  }
  void TearDown() override {
    if (ops::device_count() > 0) ops::destroy_stream(compute_);
  }

  std::unique_ptr<Trace> trace(long first_step = 0) {
    return std::make_unique<Trace>(test_comm(), compute_, config_, NodeLayout(), folder_ / "", first_step);
  }

  Content read() const {
    const h5::File file = h5::File::open(folder_ / "trace.h5");
    Content content;
    content.step = read_all<std::int64_t>(file, "/step");
    content.ranks = read_all<std::int64_t>(file, "/ranks");
    content.tokens = read_all<double>(file, "/tokens");
    content.loss = read_all<double>(file, "/loss");
    content.seconds = read_all<double>(file, "/seconds");
    content.communication = read_all<double>(file, "/communication");
    content.communication_between = read_all<double>(file, "/communication_between");
    content.validation_step = read_all<std::int64_t>(file, "/validation_step");
    content.validation_loss = read_all<double>(file, "/validation_loss");
    content.gpu_step = read_all<std::int64_t>(file, "/gpu_step");
    content.gpu_power = read_all<double>(file, "/gpu_power");
    content.gpu_clock = read_all<double>(file, "/gpu_clock");
    content.gpu_reasons = read_all<std::uint64_t>(file, "/gpu_reasons");
    content.phases = file.read_text_attribute("/", "phases");
    return content;
  }

  nlohmann::json events() const {
    return nlohmann::json::parse(std::ifstream(folder_ / "trace.json")).at("traceEvents");
  }

  TraceConfig config_;
  TempFolder folder_;
  kernels::Stream compute_;
};

}  // namespace nanorun
