#pragma once
// What the parts of config_check share.

#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <utility>

#include "src/base/error.hpp"
#include "src/config/config.hpp"

namespace nanorun {

/// The keys of a rule, the likeliest fault first.
using Keys = std::initializer_list<std::string>;

/// Collects what is wrong. Every rank checks the same settings, so all meet the errors alike.
struct Rules {
  const Config& config;
  ErrorList errors;

  /// Returns `holds`.
  template <class... Args>
  bool require(bool holds, Keys keys, fmt::format_string<Args...> message, Args&&... args) {
    if (!holds) errors.add(place_of(keys) + fmt::format(message, std::forward<Args>(args)...));
    return holds;
  }

 private:
  /// "PLACE: " of the first of the keys that was set; empty where all are defaults.
  std::string place_of(Keys keys) const {
    for (const std::string& key : keys) {
      const auto at = config.places.find(key);
      if (at != config.places.end()) return at->second + ": ";
    }
    return "";
  }
};

/// Layers and what they compute.
void check_layers(Rules& rules);
/// Stages, and the keys of the schedule that depend on them.
void check_stages(Rules& rules);
/// What is computed: to use a model, or to train it.
enum class Passes { forward, both };
/// What the CUDA implementations of the ops take (kernels/device/limits.hpp); for builds that use them.
void check_cuda(Rules& rules, Passes passes);

}  // namespace nanorun
