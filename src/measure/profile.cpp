#include "src/measure/profile.hpp"

#include <fmt/format.h>

#include "kernels/ops.hpp"

namespace nanorun {

NamedRange::NamedRange(const std::string& name) { ops::begin_range(name.c_str()); }
NamedRange::~NamedRange() { ops::end_range(); }

std::string layer_range(int layer) { return fmt::format("layer {}", layer); }

void ProfiledSteps::at_step(long step) {
  const bool records = step >= config_.first && step <= config_.last;
  if (records == records_) return;
  records_ = records;
  if (records) {
    ops::start_profiler();
  } else {
    ops::stop_profiler();
  }
}

ProfiledSteps::~ProfiledSteps() {
  if (records_) ops::stop_profiler();
}

}  // namespace nanorun
