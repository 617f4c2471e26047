#include "src/measure/rapl.hpp"

#include <filesystem>
#include <fstream>
#include <optional>

namespace nanorun {

namespace {

template <class Value>
std::optional<Value> read(const std::string& path) {
  Value value{};
  std::ifstream file(path);
  return file >> value ? std::optional(value) : std::nullopt;
}

}  // namespace

Rapl::Rapl(const std::string& powercap) {
  // Packages are intel-rapl:N, also those of AMD; intel-rapl:N:M are their parts, and other names count them again.
  for (int number = 0;; ++number) {
    const std::string folder = powercap + "/intel-rapl:" + std::to_string(number);
    const auto name = read<std::string>(folder + "/name");
    if (!name) return;
    if (!name->starts_with("package")) continue;
    const auto energy = read<std::uint64_t>(folder + "/energy_uj");
    const auto range = read<std::uint64_t>(folder + "/max_energy_range_uj");
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
    const std::uint64_t now = read<std::uint64_t>(package.folder + "/energy_uj").value_or(package.last);
    package.sum += now >= package.last ? now - package.last : now + package.range - package.last;
    package.last = now;
    sum += static_cast<double>(package.sum) * 1e-6;
  }
  return sum;
}

}  // namespace nanorun
