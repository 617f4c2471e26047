#include "src/run/memory_limit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "src/base/error.hpp"
#include "src/base/text.hpp"
#include "src/comm/node_comms.hpp"
#include "src/config/schedule.hpp"
#include "src/model/model.hpp"
#include "src/optimizer/hyperparameters.hpp"

namespace nanorun {

namespace {

/// What lowers the memory of the activations. Validation counts where it takes more than training by a twentieth.
std::string activation_remedy(const Config& config) {
  Config recomputes = config, validates = config;
  recomputes.train.recompute = Recompute::mlp;
  validates.validation.length = std::min(config.validation.length, longest_length(config));
  const std::size_t now = Model<Real>::memory_bytes(config), with_recompute = Model<Real>::memory_bytes(recomputes),
                    with_validation = Model<Real>::memory_bytes(validates);
  if (with_validation < std::min(now - now / 20, with_recompute)) return "lower validation.length";
  const std::string length = config.stage.empty() ? "lower train.length" : "lower the longest stage.N.length";
  return (with_recompute < now ? "set train.recompute = \"mlp\" or " : "") + length;
}

/// A term of the plan in messages, as the dry run's text calls it.
std::string title_of(const std::string& term) {
  if (term == "optimizer") return "optimizer state and scratch";
  if (term == "collectives") return "buffers of collectives";
  if (term == "runtime") return "CUDA and cuBLAS";
  return term;
}

/// What to do about a term of the plan, by its name.
std::string remedy(const Config& config, const std::string& term) {
  if (term == "activations") return activation_remedy(config);
  if (term == "optimizer") return "use more ranks, or lower model.width or model.layers";
  if (term == "collectives") {
    return config.comm.transport == TransportChoice::nccl ? "set comm.transport = \"auto\", or use fewer nodes"
                                                          : "use fewer nodes";
  }
  if (term == "runtime") return "use devices with more memory";
  return "lower model.width or model.layers";
}

}  // namespace

std::string memory_shortage(const Config& config, const MemoryPlan& memory, double available) {
  if (available == 0 || memory.total() <= available) return {};
  const auto terms = memory.terms();
  const auto& [term, bytes] = *std::ranges::max_element(terms, {}, [](const auto& t) { return t.second; });
  const auto text = [](double value) { return in_units(value, "B", 1024); };
  return fmt::format("a rank needs {} of memory and has {}; {} take most, {}: {}", text(memory.total()),
                     text(available), title_of(term), text(bytes), remedy(config, term));
}

void require_memory(Comm& comm, const Config& config, std::uint64_t available) {
  constexpr std::uint64_t unknown = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t least = comm.all_reduce(available == 0 ? unknown : available, Reduce::min);
  if (least == unknown) return;
  const NodeLayout layout = find_layout(comm, config.comm.ranks_per_node);
  comm.together([&] {
    if (!comm.root()) return;
    const MemoryPlan memory = memory_of(config, parameter_table(config, layout.nodes()), layout);
    const std::string shortage = memory_shortage(config, memory, static_cast<double>(least));
    if (!shortage.empty()) throw Error(ExitCode::usage, shortage);
  });
}

}  // namespace nanorun
