#include "src/comm/tensor_comm.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/text.hpp"

namespace nanorun {

using kernels::Wire;

TensorComm::TensorComm(Comm& comm, kernels::Stream stream, const CommConfig& config)
    : comms_(comm, config.ranks_per_node), stream_(stream), config_(config) {
  const Wire wire{config.gradients, config.gradient_scale};
  Comm& node = comms_.node();
  if (node.size() > 1) {
    node_ = std::make_unique<NodeCollectives>(node, stream, wire, connect(node, stream, config.transport));
  }
  for (const NodeComms::Rail& rail : comms_.rails()) {
    rails_.push_back(
        std::make_unique<RailCollectives>(*rail.comm, stream, rail_wire(wire), connect_rail(*rail.comm, stream)));
  }
}

std::string TensorComm::transport() const {
  const std::string inside = node_ ? node_->transport().name() : "";
  if (rails_.empty()) return inside;
  const std::string between = rails_.front()->transport().name() + " between nodes";
  return inside.empty() ? between : inside + " inside a node, " + between;
}

std::vector<std::string> TensorComm::notes() const {
  std::vector<std::string> notes;
  const auto memory = [&](Level level) {
    return in_units(static_cast<double>(memory_bytes(level, layout(), config_)), "B", 1024);
  };
  if (layout().nodes() > 1) {
    notes.push_back(
        fmt::format("{} nodes of at most {} rank{}; collectives take about {} of memory per rank inside a "
                    "node and {} between nodes",
                    layout().nodes(), layout().seats(), layout().seats() == 1 ? "" : "s", memory(Level::inside),
                    memory(Level::between)));
  }
  std::string settings = node_ ? node_->transport().settings() : "";
  if (settings.empty() && !rails_.empty()) settings = rails_.front()->transport().settings();
  if (!settings.empty()) notes.push_back(std::move(settings));
  return notes;
}

bool TensorComm::occupies_sms() const {
  return (node_ && node_->transport().occupies_sms()) ||
         std::ranges::any_of(rails_, [](const auto& rail) { return rail->transport().occupies_sms(); });
}

void TensorComm::synchronize() {
  if (size() == 1) return;
  const Watchdog::Guard guard = comms_.all().watch("the collectives on tensors");
  ops::synchronize(stream_);
}

void TensorComm::check() {
  if (node_) node_->transport().check();
  for (const auto& rail : rails_) rail->transport().check();
}

void TensorComm::close() {
  rails_.clear();
  node_.reset();
}

LevelTraffic TensorComm::sent() const {
  LevelTraffic sent;
  if (node_) sent.inside = node_->transport().sent();
  for (const auto& rail : rails_) sent.between += rail->transport().sent();
  return sent;
}

std::size_t TensorComm::memory_bytes(Level level, const NodeLayout& layout, const CommConfig& config) {
  const int seats = layout.seats(), nodes = layout.nodes();
  if (level == Level::inside) {
    return seats == 1 ? 0 : NodeCollectives::memory_bytes() + Transport::library_bytes(seats, config.transport);
  }
  // Nodes that the deck makes may be larger NVLink domains, in which NCCL's connections take memory.
  const bool on_one_machine = config.ranks_per_node > 0;
  return nodes == 1 ? 0 : RailCollectives::memory_bytes() + Transport::rail_library_bytes(nodes, on_one_machine);
}

void TensorComm::share_bytes(std::span<std::byte> memory) {
  if (node_) node_->transport().share(memory);
  for (const auto& rail : rails_) rail->transport().share(memory);
}

void TensorComm::gather_bytes(Level level, std::span<std::byte> data, const Bounds& parts, std::size_t element) {
  if (!has(level)) return;
  const Watchdog::Guard guard = comms_.all().watch("all_gather");
  if (level == Level::inside) {
    for (int round = 0; node_ && round < comms_.seat_rounds(); ++round)
      node_->all_gather(data, comms_.shares(parts, round), element);
    return;
  }
  for (std::size_t i = 0; i < rails_.size(); ++i)
    rails_[i]->all_gather(data, comms_.parts_of_rail(parts, comms_.rails()[i].number), element);
}

}  // namespace nanorun
