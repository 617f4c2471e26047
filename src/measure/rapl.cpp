#include "src/measure/rapl.hpp"

#include <charconv>
#include <optional>

#include "src/base/files.hpp"

namespace nanorun {

namespace {

/// The first line of a short file; empty where it cannot be read.
std::string line_of(const std::string& path) {
  constexpr std::uint64_t longest = 64;
  try {
    const std::string text = read_start(path, longest, ExitCode::output);
    return text.substr(0, text.find('\n'));
  } catch (const Error&) {
    return {};
  }
}

std::optional<std::uint64_t> number_of(const std::string& path) {
  const std::string line = line_of(path);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

}  // namespace

Rapl::Rapl(const std::string& powercap) {
  // Packages are intel-rapl:N, also those of AMD; intel-rapl:N:M are their parts, and other names count them again.
  for (int number = 0;; ++number) {
    const std::string folder = powercap + "/intel-rapl:" + std::to_string(number);
    const std::string name = line_of(folder + "/name");
    if (name.empty()) return;
    if (!name.starts_with("package")) continue;
    const auto energy = number_of(folder + "/energy_uj"), range = number_of(folder + "/max_energy_range_uj");
    if (!energy || !range) {
      packages_.clear();
      return;
    }
    packages_.push_back({folder, *range, *energy});
  }
}

double Rapl::joules() {
  double sum = 0;
  for (Package& package : packages_) {
    const std::uint64_t now = number_of(package.folder + "/energy_uj").value_or(package.last);
    package.sum += now >= package.last ? now - package.last : now + package.range - package.last;
    package.last = now;
    sum += static_cast<double>(package.sum) * 1e-6;
  }
  return sum;
}

}  // namespace nanorun
