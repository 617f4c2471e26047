// A stand-in for libnvidia-ml.so.1, with two GPUs. Built with FAKE_NVML_OLD it has the name that drivers before 535
// give a function, and does not count energy. Where the environment has NANORUN_FAKE_NVML_FAILS, it does not start.

#include <cstdlib>
#include <cstring>

namespace {

constexpr int success = 0, uninitialized = 1, invalid_argument = 2, not_supported = 3, not_found = 6,
              driver_not_loaded = 9;

struct Gpu {
  const char* bus_id;
  unsigned milliwatts, megahertz;  // 0 milliwatts: it cannot say
  unsigned long long reasons;
  unsigned long long millijoules = 1'000'000;
};
Gpu gpus[] = {{"0000:1B:00.0", 650250, 1755, 0x44}, {"0000:9A:00.0", 0, 1980, 0x1}};

int users = 0;

}  // namespace

extern "C" {

int nvmlInit_v2() {
  if (std::getenv("NANORUN_FAKE_NVML_FAILS") != nullptr) return driver_not_loaded;
  users += 1;
  return success;
}

int nvmlShutdown() {
  users -= 1;
  return success;
}

const char* nvmlErrorString(int status) {
  return status == driver_not_loaded ? "Driver Not Loaded" : status == not_found ? "Not Found" : "Unknown";
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  if (users < 1) return uninitialized;
  for (Gpu& gpu : gpus) {
    if (std::strcmp(gpu.bus_id, bus_id) != 0) continue;
    *device = &gpu;
    return success;
  }
  return not_found;
}

int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  if (users < 1) return uninitialized;
  const Gpu& gpu = *static_cast<Gpu*>(device);
  if (gpu.milliwatts == 0) return not_supported;
  *milliwatts = gpu.milliwatts;
  return success;
}

int nvmlDeviceGetClockInfo(void* device, int type, unsigned* megahertz) {
  if (users < 1) return uninitialized;
  if (type != 1) return invalid_argument;  // 1: the clock of the SMs
  *megahertz = static_cast<Gpu*>(device)->megahertz;
  return success;
}

#ifndef FAKE_NVML_OLD
// A GPU takes two joules from one call to the next.
int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* millijoules) {
  if (users < 1) return uninitialized;
  *millijoules = static_cast<Gpu*>(device)->millijoules += 2000;
  return success;
}
#endif

#ifdef FAKE_NVML_OLD
#define nvmlDeviceGetCurrentClocksEventReasons nvmlDeviceGetCurrentClocksThrottleReasons
#endif
int nvmlDeviceGetCurrentClocksEventReasons(void* device, unsigned long long* reasons) {
  if (users < 1) return uninitialized;
  *reasons = static_cast<Gpu*>(device)->reasons;
  return success;
}

}  // extern "C"
