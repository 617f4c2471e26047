#include "src/run/provenance.hpp"

#include <fmt/chrono.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <span>

#include "kernels/device/blas.hpp"
#include "kernels/ops.hpp"
#include "src/base/build.hpp"
#include "src/base/launch.hpp"
#include "src/base/text.hpp"
#include "src/storage/h5_library.hpp"
#if NANORUN_CUDA
#include "src/comm/transport_nccl.hpp"
#endif

namespace nanorun {

namespace {

using Facts = std::vector<std::pair<std::string, std::string>>;

Facts program_facts() {
  const Build& b = build();
  Facts facts = {{"version", b.version},
                 {"commit", b.commit},
                 {"compiler", b.compiler},
                 {"flags", b.flags},
                 {"mpi", mpi_version()},
                 {"hdf5", h5::version()},
                 {"blas", kernels::blas_version()},
                 {"kokkos", kernels::kokkos_version()}};
#if NANORUN_CUDA
  // jobscripts/ask_slurm.sh tells a build for GPUs by `cuda`.
  facts.insert(facts.end(), {{"cuda", b.cuda},
                             {"cuda_runtime", cuda_version(ops::runtime_version())},
                             {"cuda_driver", cuda_version(ops::driver_version())},
                             {"nccl", nccl_version()}});
#endif
  std::erase_if(facts, [](const auto& fact) { return fact.second.empty(); });
  return facts;
}

std::string value_of(const Facts& facts, const std::string& name) {
  const auto found = std::ranges::find(facts, name, &Facts::value_type::first);
  return found == facts.end() ? "" : found->second;
}

void count(std::vector<std::pair<std::string, int>>& numbers, const std::string& name) {
  const auto found = std::ranges::find(numbers, name, &std::pair<std::string, int>::first);
  if (found == numbers.end()) {
    numbers.emplace_back(name, 1);
  } else {
    found->second += 1;
  }
}

std::string hosts_text(const std::vector<std::pair<std::string, int>>& ranks_by_host) {
  constexpr std::size_t max_named_hosts = 4;
  std::vector<std::string> texts;
  for (const auto& [host, ranks] : std::span(ranks_by_host).first(std::min(max_named_hosts, ranks_by_host.size()))) {
    texts.push_back(fmt::format("{} ({} rank{})", host, ranks, ranks == 1 ? "" : "s"));
  }
  if (ranks_by_host.size() > max_named_hosts)
    texts.push_back(fmt::format("{} more hosts", ranks_by_host.size() - max_named_hosts));
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace

Provenance provenance(const Context& context) {
  Provenance p;
  p.program = program_facts();
  for (const RankDevice& device : context.devices()) {
    count(p.ranks_by_host, device.node);
    count(p.ranks_by_device, device.name);
  }
  p.job = job_id();
  p.command = shell_line(context.words());
  p.started = iso_time(context.started());
  return p;
}

std::string provenance_json(const Provenance& p, std::size_t max_size) {
  nlohmann::ordered_json json;
  for (const auto& [name, value] : p.program) json[name] = value;
  for (const auto& [host, ranks] : p.ranks_by_host) json["hosts"][host] = ranks;
  for (const auto& [device, ranks] : p.ranks_by_device) json["devices"][device] = ranks;
  if (!p.job.empty()) json["job"] = p.job;
  json["command"] = p.command;
  json["started"] = p.started;
  if (p.reproducible) json["reproducible"] = true;
  if (!p.fp8.empty()) json["fp8"] = p.fp8;
  // Names of files and arguments need not be UTF-8.
  const auto text = [&] { return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace); };
  if (text().size() > max_size) json["command"] = excerpt(p.command, 2000);
  if (text().size() > max_size) {
    int ranks = 0;
    for (const auto& host : p.ranks_by_host) ranks += host.second;
    json["hosts"] = {{fmt::format("{} hosts", p.ranks_by_host.size()), ranks}};
  }
  return text();
}

std::string info_text() {
  Facts facts = program_facts();
#if NANORUN_CUDA
  facts.emplace_back("kernels", ops::kernels_of_build());
  std::vector<std::pair<std::string, int>> devices;
  for (int i = 0; i < ops::device_count(); ++i) {
    const std::string kernels = ops::device_kernels(i);
    const std::string text = kernels.empty() ? "no kernels" : "kernels for " + kernels;
    count(devices, fmt::format("{} ({})", ops::device_name(i), text));
  }
  for (const auto& [name, number] : devices) facts.emplace_back("gpus", fmt::format("{} x {}", number, name));
  if (devices.empty()) {
    const std::string fault = driver_fault(device_of_this_host());
    facts.emplace_back("gpus", fault.empty() ? "none" : "none: " + fault);
  }
#endif
  std::string text;
  for (const auto& [name, value] : facts) text += fmt::format("{:<12} {}\n", name, value);
  return text;
}

std::vector<std::string> provenance_lines(const Provenance& p) {
  const auto value = [&](const char* name) { return value_of(p.program, name); };
  std::string libraries =
      fmt::format("{}; HDF5 {}; Kokkos {}; {}", value("mpi"), value("hdf5"), value("kokkos"), value("blas"));
  if (const std::string nccl = value("nccl"); !nccl.empty()) {
    libraries += fmt::format("; CUDA {}, driver for {}; NCCL {}", value("cuda_runtime"), value("cuda_driver"), nccl);
  }
  return {excerpt(p.command, 500),
          fmt::format("started {} on {}{}", p.started, hosts_text(p.ranks_by_host),
                      p.job.empty() ? "" : fmt::format(", job {}", p.job)),
          libraries, excerpt("flags " + value("flags"), 500)};
}

std::string shell_line(const std::vector<std::string>& words) {
  constexpr const char* plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  std::string line;
  for (const std::string& word : words) {
    if (!line.empty()) line += ' ';
    if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) {
      line += word;
      continue;
    }
    line += '\'';
    for (const char c : word) line += c == '\'' ? std::string("'\\''") : std::string(1, c);
    line += '\'';
  }
  return line;
}

std::string iso_time(std::chrono::system_clock::time_point time) {
  const std::string text =
      fmt::format("{:%Y-%m-%dT%H:%M:%S%z}", fmt::localtime(std::chrono::system_clock::to_time_t(time)));
  const std::size_t minutes = text.size() - 2;  // the minutes of the zone, behind which ISO 8601 wants a colon
  return fmt::format("{}:{}", text.substr(0, minutes), text.substr(minutes));
}

}  // namespace nanorun
