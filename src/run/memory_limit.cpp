#include "src/run/memory_limit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "src/base/error.hpp"
#include "src/base/text.hpp"
#include "src/comm/node_comms.hpp"
#include "src/config/schedule.hpp"
#include "src/model/model.hpp"
#include "src/optimizer/hyperparameters.hpp"

namespace nanorun {

namespace {

/// The deck with more recomputation, and what sets it; the deck as it is where there is no more.
std::pair<Config, std::string> recomputing_more(Config config) {
  TrainConfig& train = config.train;
  if (!train.recompute_layers.empty()) {
    train.recompute_layers.clear();
    return {config, "set train.recompute_layers = []"};
  }
  const bool none = train.recompute == Recompute::none;
  train.recompute = none ? Recompute::mlp : Recompute::block;
  return {config, none ? "set train.recompute = \"mlp\"" : "set train.recompute = \"block\""};
}

/// What lowers the memory of the activations. Validation counts where it takes more than training by a twentieth.
std::string activation_remedy(const Config& config) {
  Config validates = config;
  const auto [recomputes, recompute] = recomputing_more(config);
  validates.validation.length = std::min(config.validation.length, longest_length(config));
  const std::size_t now = Model<Real>::memory_bytes(config), with_recompute = Model<Real>::memory_bytes(recomputes),
                    with_validation = Model<Real>::memory_bytes(validates);
  if (with_validation < std::min(now - now / 20, with_recompute)) return "lower validation.length";
  const std::string length = config.stage.empty() ? "lower train.length" : "lower the longest stage.N.length";
  return (with_recompute < now ? recompute + " or " : "") + length;
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
