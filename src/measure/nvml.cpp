#include "src/measure/nvml.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <stdexcept>
#include <utility>

namespace nanorun {

namespace {

// Types and constants of NVML's interface; their values never change.
using Device = void*;
constexpr int success = 0;
constexpr int sm_clock = 1;

constexpr std::array<std::pair<std::uint64_t, const char*>, 6> throttles = {{{0x04, "sw_power_cap"},
                                                                             {0x08, "hw_slowdown"},
                                                                             {0x10, "sync_boost"},
                                                                             {0x20, "sw_thermal_slowdown"},
                                                                             {0x40, "hw_thermal_slowdown"},
                                                                             {0x80, "hw_power_brake_slowdown"}}};

}  // namespace

/// The loaded library and its functions. Functions that ask for a value may be missing.
struct Nvml::Library {
  explicit Library(const std::string& name) : handle(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle == nullptr) {
      const char* const reason = ::dlerror();
      throw std::runtime_error(reason == nullptr ? name + " cannot be loaded" : reason);
    }
    find(init, "nvmlInit_v2");
    find(shutdown, "nvmlShutdown");
    find(device_by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2");
    find(error_text, "nvmlErrorString");
    find(power, "nvmlDeviceGetPowerUsage");
    find(energy, "nvmlDeviceGetTotalEnergyConsumption");
    find(clock, "nvmlDeviceGetClockInfo");
    find(reasons, "nvmlDeviceGetCurrentClocksEventReasons");
    if (reasons == nullptr) find(reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");  // the name before driver 535
    if (init == nullptr || shutdown == nullptr || device_by_bus_id == nullptr) {
      ::dlclose(handle);
      throw std::runtime_error(name + " lacks functions of NVML");
    }
    if (const int status = init(); status != success) {
      const std::string text = failure("nvmlInit_v2", status);
      ::dlclose(handle);
      throw std::runtime_error(text);
    }
  }

  ~Library() {
    shutdown();
    ::dlclose(handle);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  template <class Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(::dlsym(handle, name));
  }

  std::string failure(const char* call, int status) const {
    const char* const text = error_text == nullptr ? nullptr : error_text(status);
    return fmt::format("{}: {}", call, text == nullptr ? fmt::format("status {}", status) : text);
  }

  void* handle;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*device_by_bus_id)(const char*, Device*) = nullptr;
  const char* (*error_text)(int) = nullptr;
  int (*power)(Device, unsigned*) = nullptr;             ///< milliwatts
  int (*energy)(Device, unsigned long long*) = nullptr;  ///< millijoules
  int (*clock)(Device, int, unsigned*) = nullptr;        ///< MHz
  int (*reasons)(Device, unsigned long long*) = nullptr;
};

std::vector<std::string> throttle_names(std::uint64_t reasons) {
  std::vector<std::string> names;
  for (const auto& [bit, name] : throttles) {
    if ((reasons & bit) != 0) names.emplace_back(name);
  }
  return names;
}

Nvml::Nvml(const std::string& bus_id, const std::string& library) : library_(std::make_unique<Library>(library)) {
  const int status = library_->device_by_bus_id(bus_id.c_str(), &device_);
  if (status != success) throw std::runtime_error(library_->failure(("GPU " + bus_id).c_str(), status));
}

Nvml::~Nvml() = default;

GpuState Nvml::read() const {
  GpuState state;
  unsigned value = 0;
  unsigned long long bits = 0;
  if (library_->power != nullptr && library_->power(device_, &value) == success) state.power = value * 1e-3;
  if (library_->clock != nullptr && library_->clock(device_, sm_clock, &value) == success) state.clock = value;
  if (library_->reasons != nullptr && library_->reasons(device_, &bits) == success) state.reasons = bits;
  return state;
}

std::optional<double> Nvml::joules() const {
  unsigned long long value = 0;
  if (library_->energy == nullptr || library_->energy(device_, &value) != success) return std::nullopt;
  return static_cast<double>(value) * 1e-3;
}

}  // namespace nanorun
