#include "src/context.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "kernels/ops.hpp"
#include "src/error.hpp"

extern "C" void openblas_set_num_threads(int threads);

namespace nanorun {

namespace {

/// Ranks share the cores of a host, so a rank's BLAS runs on one thread unless the user says otherwise.
void limit_blas_threads() {
  if (std::getenv("OPENBLAS_NUM_THREADS") == nullptr) openblas_set_num_threads(1);
}

std::string host_name() {
  char name[MPI_MAX_PROCESSOR_NAME];
  int length = 0;
  MPI_Get_processor_name(name, &length);
  return {name, static_cast<std::size_t>(length)};
}

/// Collective. The places of all ranks on rank 0; empty elsewhere.
std::vector<DevicePlace> gather_places(Comm& comm, const DevicePlace& own) {
  const std::vector<std::string> hosts = comm.gather(own.host), identities = comm.gather(own.identity),
                                 names = comm.gather(own.name);
  const std::vector<double> visible = comm.all_gather(own.visible);
  std::vector<DevicePlace> places(hosts.size());
  for (std::size_t r = 0; r < places.size(); ++r) {
    places[r] = {hosts[r], identities[r], names[r], static_cast<int>(visible[r])};
  }
  return places;
}

}  // namespace

void require_own_devices(const std::vector<DevicePlace>& places) {
  std::map<std::pair<std::string, std::string>, std::vector<std::size_t>> ranks_of;
  for (std::size_t r = 0; r < places.size(); ++r) {
    const DevicePlace& place = places[r];
    if (!place.identity.empty()) ranks_of[{place.host, place.identity}].push_back(r);
  }
  for (const auto& [device, ranks] : ranks_of) {
    if (ranks.size() == 1) continue;
    const DevicePlace& place = places[ranks.front()];
    throw Error(ExitCode::usage,
                fmt::format("ranks {} on {} share one GPU ({} {}), of {} that they see: start one rank per GPU, with "
                            "mpirun -n or srun --ntasks-per-node, and let CUDA_VISIBLE_DEVICES name all GPUs for every "
                            "rank or one of its own for each",
                            fmt::join(ranks, ", "), place.host, place.name, place.identity, place.visible),
                Scope::all_ranks);
  }
}

Context::Context(int& argc, char**& argv) : start_(std::chrono::steady_clock::now()) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  limit_blas_threads();
  comm_ = std::make_unique<Comm>(MPI_COMM_WORLD);
}

void Context::open_device() {
  const int local_rank = comm_->rank_on_host();
  DevicePlace place{host_name(), {}, {}, ops::device_count()};
  comm_->together([&] {
    if (place.visible > 0) return;
    throw Error(ExitCode::usage,
                fmt::format("rank {} on {} finds no GPU: this nanorun is built for CUDA; run it where nvidia-smi lists "
                            "GPUs, with CUDA_VISIBLE_DEVICES unset or naming some, or build it with "
                            "-DNANORUN_CUDA=OFF to compute on CPUs",
                            comm_->rank(), place.host));
  });
  const int device = local_rank % place.visible;
  place.identity = ops::device_identity(device);
  place.name = ops::device_name(device);
  const std::vector<DevicePlace> places = gather_places(*comm_, place);
  comm_->together([&] { require_own_devices(places); });
  ops::use_device(device);
  kernels::start_kokkos(device);
  stream_ = ops::create_stream(true);
  comm_stream_ = ops::create_stream(false);
  upload_stream_ = ops::create_stream(false);
  device_ = device;
}

Context::~Context() {
  if (device_ >= 0) {
    for (kernels::Stream* stream : {&upload_stream_, &comm_stream_, &stream_}) ops::destroy_stream(*stream);
  }
  comm_.reset();
  kernels::stop_kokkos();
  MPI_Finalize();
}

void Context::look_at_device_memory() {
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
