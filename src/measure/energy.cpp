#include "src/measure/energy.hpp"

namespace nanorun {

namespace {

/// Counters of processors overflow after minutes.
constexpr std::chrono::seconds rapl_interval{20};

}  // namespace

EnergyMeter::EnergyMeter(Comm& comm, GpuMonitor& gpus, const std::string& powercap) : comm_(comm), gpus_(gpus) {
  if (comm.rank_on_node() == 0) rapl_.emplace(powercap);
}

void EnergyMeter::resume() {
  const Clock::time_point now = Clock::now();
  if (rapl_ && (!counts_ || now - rapl_read_ > rapl_interval)) {
    const double joules = rapl_->joules();
    if (!counts_) rapl_begin_ = joules;
    rapl_read_ = now;
  }
  if (counts_) return;
  counts_ = true;
  begin_ = now;
  const std::optional<double> gpu = gpus_.joules();
  gpu_known_ = gpu_known_ && gpu;
  gpu_begin_ = gpu.value_or(0);
}

void EnergyMeter::pause() {
  if (!counts_) return;
  counts_ = false;
  seconds_ += std::chrono::duration<double>(Clock::now() - begin_).count();
  if (rapl_) processors_ += rapl_->joules() - rapl_begin_;
  const std::optional<double> gpu = gpus_.joules();
  gpu_known_ = gpu_known_ && gpu;
  gpu_ += gpu.value_or(0) - gpu_begin_;
}

Energy EnergyMeter::sum() {
  pause();
  Energy energy;
  const bool processors = !rapl_ || rapl_->known();
  energy.gpus_counted = comm_.all_reduce(std::uint64_t{gpu_known_}, Reduce::min) != 0;
  const bool processors_known = comm_.all_reduce(std::uint64_t{processors}, Reduce::min) != 0;
  const double gpus = comm_.all_reduce(gpu_known_ ? gpu_ : 0, Reduce::sum);
  const double of_processors = comm_.all_reduce(processors_, Reduce::sum);
  if (processors_known) energy.processors = of_processors;
  if (energy.gpus_counted) {
    energy.gpus = gpus;
  } else if (const std::optional<double> power = gpus_.mean_power()) {
    energy.gpus = *power * seconds_;
  }
  return energy;
}

}  // namespace nanorun
