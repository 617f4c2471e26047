#include "src/comm/context.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "kernels/device/blas.hpp"
#include "kernels/device/code_ranges.hpp"
#include "kernels/device/variables.hpp"
#include "kernels/ops.hpp"
#include "src/base/early.hpp"
#include "src/base/error.hpp"
#include "src/storage/h5.hpp"

namespace nanorun {

namespace {

/// The device for the rank with this number on its node. Throws Error(internal) where the driver fails.
RankDevice device_of(int rank, int rank_on_node) {
  RankDevice device;
  device.node = host_name();
  try {
    device.driver = ops::driver_version();
    device.runtime = ops::runtime_version();
    device.visible = ops::device_count();
    if (device.visible == 0) return device;
    device.number = rank_on_node % device.visible;
    device.identity = ops::device_identity(device.number);
    device.name = ops::device_name(device.number);
    device.capability = ops::device_capability(device.number);
    const int limit = kernels::device_variables().capability;
    if (limit < device.capability) device.passes_for = limit;
    device.kernels = ops::device_kernels(device.number);
    device.memory = ops::device_memory(device.number);
  } catch (const std::runtime_error& error) {
    throw Error(ExitCode::internal,
                fmt::format("rank {} on node {} cannot ask for its GPUs: {}", rank, device.node, error.what()));
  }
  return device;
}

/// Collective. The devices of all ranks on rank 0; empty elsewhere.
std::vector<RankDevice> gather_devices(Comm& comm, const RankDevice& own) {
  const std::vector<std::string> nodes = comm.gather(own.node), identities = comm.gather(own.identity),
                                 names = comm.gather(own.name);
  const std::vector<double> visible = comm.all_gather(own.visible);
  std::vector<RankDevice> devices(nodes.size());
  for (std::size_t r = 0; r < devices.size(); ++r) {
    devices[r].node = nodes[r];
    devices[r].identity = identities[r];
    devices[r].name = names[r];
    devices[r].visible = static_cast<int>(visible[r]);
  }
  return devices;
}

/// The oldest driver for all versions of CUDA with this first number.
std::string driver_for(int major) {
  switch (major) {
    case 12:
      return "driver 525 or newer";
    case 13:
      return "driver 580 or newer";
    default:
      return "a newer driver";
  }
}

}  // namespace

std::string cuda_version(int number) {
  return number == 0 ? "none" : fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

RankDevice device_of_this_host() { return device_of(0, 0); }

std::string driver_fault(const RankDevice& device) {
  const int major = device.runtime / 1000;
  // A driver supports all versions of CUDA that share its first number.
  if (device.driver == 0 || device.driver / 1000 >= major) return {};
  return fmt::format("the driver supports CUDA {}, this nanorun needs {}.0, {}", cuda_version(device.driver), major,
                     driver_for(major));
}

std::string device_fault(const RankDevice& device) {
  if (device.visible == 0 || device.runtime == 0 || !device.kernels.empty()) return {};
  const bool passes = device.passes_for > 0;
  return fmt::format(
      "{} has compute capability {}{}; this build has kernels for {}: run it on such GPUs{}, build it with "
      "CMAKE_CUDA_ARCHITECTURES naming the GPU's own, from 80 on, or with -DNANORUN_CUDA=OFF to compute on CPUs",
      device.name, kernels::capability_text(device.capability),
      passes ? ", passes for " + kernels::capability_text(device.passes_for) + " by NANORUN_TIER" : "",
      ops::kernels_of_build(), passes ? " without this variable" : "");
}

void require_usable_device(int rank, const RankDevice& device) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ExitCode::usage, fmt::format("rank {} on node {}{}", rank, device.node, why));
  };
  if (const std::string fault = driver_fault(device); !fault.empty()) refuse(": " + fault);
  if (device.visible == 0) {
    refuse(
        device.runtime > 0
            ? " finds no GPU: this nanorun is built for CUDA; run it where nvidia-smi lists GPUs, with "
              "CUDA_VISIBLE_DEVICES unset or naming some, or build it with -DNANORUN_CUDA=OFF to compute on CPUs"
            : " finds no GPU: this nanorun is built with a Kokkos for GPUs; run it where there are GPUs and a driver "
              "that Kokkos can use, or build it with a Kokkos without a GPU backend to compute on CPUs");
  }
  if (const std::string fault = device_fault(device); !fault.empty()) refuse(": " + fault);
}

void require_kernels(int rank, const RankDevice& device, const std::string& fault) {
  if (fault.empty()) return;
  throw Error(ExitCode::usage,
              fmt::format("rank {} on node {}: {} of compute capability {}, with a driver for CUDA {}, does not run "
                          "this build's kernels for {}: {}",
                          rank, device.node, device.name, kernels::capability_text(device.capability),
                          cuda_version(device.driver), ops::kernels_of_build(), fault));
}

void require_own_devices(const std::vector<RankDevice>& devices) {
  std::map<std::pair<std::string, std::string>, std::vector<std::size_t>> ranks_of;
  for (std::size_t r = 0; r < devices.size(); ++r) {
    const RankDevice& device = devices[r];
    if (!device.identity.empty()) ranks_of[{device.node, device.identity}].push_back(r);
  }
  for (const auto& [identity, ranks] : ranks_of) {
    if (ranks.size() == 1) continue;
    const RankDevice& device = devices[ranks.front()];
    throw Error(
        ExitCode::usage,
        fmt::format("ranks {} on node {} share one GPU ({} {}), of {} that they see: start one rank per GPU, with "
                    "mpirun -n or srun --ntasks-per-node, and let CUDA_VISIBLE_DEVICES name all GPUs for every "
                    "rank or one of its own for each",
                    fmt::join(ranks, ", "), device.node, device.name, device.identity, device.visible),
        Scope::all_ranks);
  }
}

std::string idle_devices(const std::vector<RankDevice>& devices) {
  struct Node {
    int ranks = 0, visible = 0;
  };
  std::map<std::string, Node> nodes;
  for (const RankDevice& device : devices) {
    Node& node = nodes[device.node];
    node.ranks += 1;
    node.visible = std::max(node.visible, device.visible);
  }
  int ranks = 0, usable = 0;
  for (const auto& [name, node] : nodes) {
    ranks += node.ranks;
    usable += std::max(node.visible, node.ranks);  // where each rank sees its own alone there is one for each
  }
  if (usable == ranks) return {};
  return fmt::format("{} rank{} of the {} GPUs of {}; start one rank per GPU to use all", ranks,
                     ranks == 1 ? " uses 1" : fmt::format("s use {}", ranks), usable,
                     nodes.size() == 1 ? "this node" : fmt::format("{} nodes", nodes.size()));
}

double peak_flops(const std::string& device_name) {
  static const std::map<std::string, double> peaks = {
      {"NVIDIA A100-SXM4-40GB", 312e12}, {"NVIDIA A100-SXM4-80GB", 312e12},   {"NVIDIA A100-PCIE-40GB", 312e12},
      {"NVIDIA A100 80GB PCIe", 312e12}, {"NVIDIA H100 80GB HBM3", 989.4e12}, {"NVIDIA H100 PCIe", 756e12},
      {"NVIDIA H200", 989.4e12},         {"NVIDIA GH200 120GB", 989.4e12},    {"NVIDIA GH200 480GB", 989.4e12}};
  const auto found = peaks.find(device_name);
  return found == peaks.end() ? 0 : found->second;
}

double peak_flops(const std::vector<RankDevice>& devices) {
  double sum = 0;
  for (const RankDevice& device : devices) {
    const double peak = peak_flops(device.name);
    if (peak == 0) return 0;
    sum += peak;
  }
  return sum;
}

Context::Context(int argc, char** argv)
    : start_(std::chrono::steady_clock::now()),
      started_(std::chrono::system_clock::now()),
      words_(argv, argv + argc),
      under_mpirun_(std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) {
  start_ -= std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds_of_process()));
  h5::start(argv);
  int program_name_only = 1;
  MPI_Init_thread(&program_name_only, &argv, MPI_THREAD_FUNNELED, &threads_provided_);
  kernels::limit_blas_threads();
  comm_ = std::make_unique<Comm>(MPI_COMM_WORLD);
}

void Context::require_threads() {
  comm_->together([&] {
    if (threads_provided_ >= MPI_THREAD_FUNNELED) return;
    throw Error(ExitCode::usage, fmt::format("{} provides MPI_THREAD_SINGLE alone, and nanorun has threads: build "
                                             "nanorun with an MPI that provides MPI_THREAD_FUNNELED",
                                             mpi_version()));
  });
}

const RankDevice& Context::pick_device() {
  if (picked_) return *picked_;
  RankDevice device;
  comm_->together([&] {
    device = device_of(comm_->rank(), comm_->rank_on_node());
    require_usable_device(comm_->rank(), device);
  });
  devices_ = gather_devices(*comm_, device);
  comm_->together([&] { require_own_devices(devices_); });
  return picked_.emplace(device);
}

void Context::open_device(bool reproducible) {
  const RankDevice& device = pick_device();
  device_note_ = idle_devices(devices_);
  peak_flops_ = nanorun::peak_flops(devices_);
  ops::use_device(device.number);
  comm_->together([&] { require_kernels(comm_->rank(), device, ops::kernel_fault()); });
  kernels::start_kokkos(device.number);
  using kernels::Gemms;
  stream_ = ops::create_stream(reproducible ? Gemms::reproducible : Gemms::timed);
  comm_stream_ = ops::create_stream(Gemms::none);
  upload_stream_ = ops::create_stream(Gemms::none);
  ops::name_stream(stream_, "compute");
  ops::name_stream(comm_stream_, "collectives");
  ops::name_stream(upload_stream_, "copies");
  device_ = device.number;
}

void Context::require_room_for_gemms() {
  comm_->together([&] {
    if (!ops::on_host || kernels::room_for_blas_buffers()) return;
    throw Error(
        ExitCode::internal,
        fmt::format("rank {}: no room for OpenBLAS's buffers: raise the limits on address space and data (ulimit "
                    "-v, ulimit -d), lower train.length (with stages stage.N.length) or "
                    "validation.length, or use more ranks",
                    comm_->rank()));
  });
}

Context::~Context() {
  if (device_ >= 0) {
    for (kernels::Stream* stream : {&upload_stream_, &comm_stream_, &stream_}) ops::destroy_stream(*stream);
  }
  comm_.reset();
  kernels::stop_kokkos();
  MPI_Finalize();
}

void Context::sample_device_memory() {
  peak_device_memory_ = std::max(peak_device_memory_, std::uint64_t{ops::device_memory_in_use()});
}

double Context::seconds_since_start() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void Context::abort(int exit_code) {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

}  // namespace nanorun
