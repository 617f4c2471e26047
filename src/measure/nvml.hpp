#pragma once
// Power and clock of an NVIDIA GPU, and what holds its clock down, from NVML, the driver's management library. It is
// looked for when the program runs; nothing is linked, and the CPU build has this reader too.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nanorun {

/// The state of a GPU at one moment; 0 where NVML does not tell a number.
struct GpuState {
  double power = 0;           ///< watts, of the whole board
  double clock = 0;           ///< MHz, of the SMs
  std::uint64_t reasons = 0;  ///< why the clock is not higher: the bits of NVML's clocks event reasons
};

/// Names, as nvidia-smi gives them, of the reasons in `reasons` that slow down a computing GPU, such as "sw_power_cap".
/// Idleness, and clocks that somebody has set, are not among them.
std::vector<std::string> throttle_names(std::uint64_t reasons);

class Nvml {
 public:
  /// bus_id: the GPU's PCI bus id, "0000:1b:00.0", which does not depend on what GPUs the process sees; in MIG mode the
  /// bus id of the whole GPU. Throws std::runtime_error where there is no library, or it does not know the GPU.
  explicit Nvml(const std::string& bus_id, const std::string& library = "libnvidia-ml.so.1");
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  /// Asks the driver, which takes up to some milliseconds. Called by one thread at a time.
  GpuState read() const;
  /// Joules that the GPU has taken since the driver was loaded; absent where it does not count them.
  std::optional<double> joules() const;

 private:
  struct Library;
  std::unique_ptr<Library> library_;
  void* device_ = nullptr;
};

}  // namespace nanorun
