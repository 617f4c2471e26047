#pragma once
// The rules of check_config() that involve several keys: how a rule is stated, and the files that have rules.

#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <utility>

#include "src/base/error.hpp"
#include "src/config/config.hpp"

namespace nanorun {

/// The keys of a rule, the likeliest fault first.
using Keys = std::initializer_list<std::string>;

/// "FILE:LINE: " or "override ...: " for the first of the keys that was set; empty where all have their defaults.
inline std::string where_set(const Config& config, Keys keys) {
  for (const std::string& key : keys) {
    const auto at = config.set_at.find(key);
    if (at != config.set_at.end()) return at->second + ": ";
  }
  return "";
}

/// Collects the rules that are broken. Every rank checks the same deck, so all meet the errors alike.
struct Rules {
  const Config& config;
  ErrorList errors;

  /// Adds `message` as an error where the rule does not hold. Returns `holds`.
  template <class... Args>
  bool require(bool holds, Keys keys, fmt::format_string<Args...> message, Args&&... args) {
    if (!holds) refuse(keys, message, std::forward<Args>(args)...);
    return holds;
  }
  /// Adds `message` as an error.
  template <class... Args>
  void refuse(Keys keys, fmt::format_string<Args...> message, Args&&... args) {
    errors.add(where_set(config, keys) + fmt::format(message, std::forward<Args>(args)...));
  }
};

/// Rules on layers and what they compute.
void check_layers(Rules& rules);
/// Rules on operands in 8 bits.
void check_fp8(Rules& rules);
/// Rules on stages, and on the keys of the schedule that depend on them.
void check_stages(Rules& rules);
/// Rules on keys that nothing reads where another key is off.
void check_unread(Rules& rules);
/// The passes that are computed: forward alone where a model is only used, both where it is trained.
enum class Passes { forward, both };
/// Limits of the CUDA implementations of the ops (kernels/device/cuda_limits.hpp), for builds that use them.
void check_cuda(Rules& rules, Passes passes);

}  // namespace nanorun
