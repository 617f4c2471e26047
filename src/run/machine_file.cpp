#include "src/run/machine_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

#include "src/base/error.hpp"
#include "src/base/files.hpp"

namespace nanorun {

namespace {

constexpr std::uint64_t max_bytes = 1 << 20;

Machine::Link link_of(const nlohmann::json& json) { return {json.at("latency"), json.at("seconds_per_byte")}; }

/// The value that a standard normal number does not exceed with this probability, above 0 and at least 1/2.
double normal_quantile(double probability) {
  double low = 0, high = 40;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(middle / std::sqrt(2.0)) / 2 > 1 - probability ? low : high) = middle;
  }
  return low;
}

/// The expected largest of so many standard normal numbers (G. Blom, Statistical Estimates and Transformed
/// Beta-Variables, 1958).
double slowest(int ranks) { return normal_quantile((ranks - 0.375) / (ranks + 0.25)); }

double work_of(const TrainingPlan& plan, const std::string& rule) {
  for (const auto& [name, work] : plan.work) {
    if (name == rule) return work;
  }
  return 0;
}

/// Seconds of a step of the plan whose sequences take the work of the machine's study.
double step_of(const Machine& machine, const TrainingPlan& plan, int sequences) {
  const PlannedSending& sent = plan.sending.all;
  const auto transfer = [](const Machine::Link& link, double messages, double bytes) {
    return link.latency * messages + link.per_byte * bytes;
  };
  const double own = machine.per_sequence * sequences / plan.ranks + machine.muon * work_of(plan, "muon") +
                     machine.adam * work_of(plan, "adam");
  const double communication = transfer(machine.inside, sent.messages_inside, sent.bytes_inside) +
                               transfer(machine.between, sent.messages_between, sent.bytes_between);
  const int rounds = std::bit_width(static_cast<unsigned>(plan.ranks - 1));
  return own * (1 + machine.spread * slowest(plan.ranks)) + machine.constant + (1 - machine.overlap) * communication +
         machine.all_reduce * rounds;
}

/// Throws Error(usage) where a number is none of a fit.
Machine checked(Machine machine) {
  const auto positive = [](double x) { return x > 0 && std::isfinite(x); };
  const auto at_least_zero = [](double x) { return x >= 0 && std::isfinite(x); };
  const double others[] = {machine.constant,
                           machine.muon,
                           machine.adam,
                           machine.spread,
                           machine.inside.latency,
                           machine.inside.per_byte,
                           machine.between.latency,
                           machine.between.per_byte,
                           machine.all_reduce,
                           machine.overlap,
                           machine.largest_error};
  if (!positive(machine.flops_per_sequence) || !positive(machine.per_sequence) || machine.overlap > 1 ||
      !std::ranges::all_of(others, at_least_zero)) {
    throw Error(ExitCode::usage, fmt::format("{}: no machine.json of a scaling study: it has numbers that no study "
                                             "finds, such as times below 0 or an overlap above 1",
                                             machine.path));
  }
  return machine;
}

}  // namespace

Machine read_machine(const std::string& path) {
  const std::string text = read_text(path, max_bytes, ExitCode::usage);
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    if (json.at("format") != "nanorun machine" || json.at("format_version") != 1)
      throw Error(ExitCode::usage, fmt::format("{}: another format than \"nanorun machine\" 1", path));
    const nlohmann::json& seconds = json.at("seconds");
    return checked({path, json.at("model"), json.at("flops_per_sequence"), seconds.at("sequence"), seconds.at("step"),
                    seconds.at("muon"), seconds.at("adam"), json.at("spread"), link_of(seconds.at("inside")),
                    link_of(seconds.at("between")), seconds.at("all_reduce"), json.at("overlap"),
                    json.at("largest_error")});
  } catch (const nlohmann::json::exception& error) {
    throw Error(ExitCode::usage, fmt::format("{}: no machine.json of a scaling study: {}", path, error.what()));
  }
}

void predict_steps(std::span<const Machine> machines, TrainingPlan& plan, const std::string& model, int sequences) {
  const auto refuse = [](const Machine& machine, const std::string& why) {
    throw Error(ExitCode::usage, fmt::format("{}: tells no step of this deck: {}", machine.path, why));
  };
  for (const Machine& machine : machines)
    if (machine.model != model) refuse(machine, "the study trained another model");
  if (machines.empty()) return;
  bool predicted = false;
  for (StagePlan& stage : plan.stages) {
    const double flops = stage.flops / sequences;
    const auto machine = std::ranges::find_if(
        machines, [&](const Machine& machine) { return std::abs(flops - machine.flops_per_sequence) <= 1e-6 * flops; });
    if (machine == machines.end()) {
      stage.unknown = "its sequences take other work: train.length or the windows differ from those of the study";
      continue;
    }
    stage.step_seconds = step_of(*machine, plan, sequences);
    stage.step_error = machine->largest_error;
    predicted = true;
  }
  if (!predicted) refuse(machines.front(), plan.stages.front().unknown);
}

}  // namespace nanorun
