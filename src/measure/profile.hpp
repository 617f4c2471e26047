#pragma once
// What profilers show of a run (Nsight Systems, tools of Kokkos), and which steps they record.

#include <string>

#include "src/config/config.hpp"

namespace nanorun {

/// Names what this host thread enqueues from construction to destruction. Ranges nest: a step, a phase, a layer.
class NamedRange {
 public:
  explicit NamedRange(const std::string& name);
  ~NamedRange();
  NamedRange(const NamedRange&) = delete;
  NamedRange& operator=(const NamedRange&) = delete;
};

/// The name of a layer's range: "layer 3".
std::string layer_range(int layer);

/// Starts and stops a profiler that waits for that (nsys profile --capture-range=cudaProfilerApi) by profile.first and
/// profile.last.
class ProfiledSteps {
 public:
  explicit ProfiledSteps(const ProfileConfig& config) : config_(config) {}
  ~ProfiledSteps();
  ProfiledSteps(const ProfiledSteps&) = delete;
  ProfiledSteps& operator=(const ProfiledSteps&) = delete;

  /// Before the step, counted from 0, and after the last one.
  void at_step(long step);

 private:
  ProfileConfig config_;
  bool records_ = false;
};

}  // namespace nanorun
