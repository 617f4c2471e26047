#pragma once
// On which GPUs compiled code runs, by compute capabilities: 10 major + minor.

#include <algorithm>
#include <string>
#include <vector>

namespace nanorun::kernels {

/// Code of a build: it runs on GPUs from `least` to `most`, where code that a driver compiles has 1000.
struct CodeRange {
  int least = 0, most = 0;
};

inline bool runs_on(const std::vector<CodeRange>& code, int capability) {
  return std::ranges::any_of(
      code, [&](const CodeRange& range) { return range.least <= capability && capability <= range.most; });
}

/// 80 as "8.0".
inline std::string capability_text(int capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

/// "8.0 to 8.9, 12.0 and higher"; empty where there is no code. Ranges that touch count as one.
inline std::string ranges_text(std::vector<CodeRange> code) {
  std::ranges::sort(code, {}, &CodeRange::least);
  std::vector<CodeRange> merged;
  for (const CodeRange& range : code) {
    if (!merged.empty() && range.least <= merged.back().most + 1) {
      merged.back().most = std::max(merged.back().most, range.most);
    } else {
      merged.push_back(range);
    }
  }
  std::string text;
  for (const auto& [least, most] : merged) {
    text += (text.empty() ? "" : ", ") + capability_text(least);
    if (most >= 1000) {
      text += " and higher";
    } else if (most > least) {
      text += " to " + capability_text(most);
    }
  }
  return text;
}

}  // namespace nanorun::kernels
