#pragma once
// Energy of the processors of a node, from the RAPL counters that Linux shows in its file system.

#include <cstdint>
#include <string>
#include <vector>

namespace nanorun {

class Rapl {
 public:
  /// `powercap`: where Linux shows the counters. Where no package of processors has one that this process may read
  /// (most systems let root alone read them), joules() stays 0 and known() is false.
  explicit Rapl(const std::string& powercap = "/sys/class/powercap");

  bool known() const { return !packages_.empty(); }
  /// Joules of all packages since construction. Call it more often than a counter overflows, which takes minutes.
  double joules();

 private:
  struct Package {
    std::string folder;
    std::uint64_t range;  ///< microjoules at which the counter begins again
    std::uint64_t last;
    std::uint64_t sum = 0;
  };

  std::vector<Package> packages_;
};

}  // namespace nanorun
