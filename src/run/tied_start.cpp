#include "src/run/tied_start.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/error.hpp"
#include "src/optimizer/rule_adam.hpp"
#include "src/optimizer/tied_lm_head.hpp"
#include "src/run/trained_model.hpp"

namespace nanorun {

namespace {

constexpr const char *head = "/weights/head", *embedding = "/weights/embedding";

const Slab<float>& find(const std::vector<Slab<float>>& slabs, const std::string& dataset) {
  return *std::ranges::find(slabs, dataset, &Slab<float>::dataset);
}

}  // namespace

void require_tied(Comm& comm, const Config& config, const std::string& file, long step,
                  const std::vector<Slab<float>>& slabs) {
  if (!ties_lm_head(config, step)) return;
  const auto bytes = [&](const char* dataset) { return std::as_bytes(find(slabs, dataset).data); };
  const bool differ = !std::ranges::equal(bytes(head), bytes(embedding));
  if (comm.all_reduce(std::uint64_t{differ}, Reduce::max) == 0) return;
  throw Error(ExitCode::checkpoint,
              fmt::format("{}: its embedding is no copy of its head, and the run's {} update would make it one "
                          "(model.tied_head, train.untie_step = {}); train.untie_step = -1 trains both as they are",
                          file, step == 0 ? "first" : "next", config.train.untie_step),
              Scope::all_ranks);
}

void verify_tied(Comm& alone, const Config& config, const ParameterTable& table, const std::string& file, long step,
                 const std::function<void(const Slab<float>&)>& read) {
  if (!ties_lm_head(config, step)) return;
  const std::vector<Slab<float>> all = weight_slabs(table);
  std::vector<Slab<float>> slabs{find(all, head), find(all, embedding)};
  std::vector<std::vector<float>> values;
  for (Slab<float>& slab : slabs) {
    slab.data = values.emplace_back(slab.total_rows * slab.cols);
    read(slab);
  }
  require_tied(alone, config, file, step, slabs);
}

bool parts_lm_head(const CheckpointHeader& header, const Config& config) {
  const long step = header.progress.step;
  if (ties_lm_head(config, step)) return false;
  bool tied = false;
  quietly([&] { tied = ties_lm_head(parse_deck(header.deck, "", {}), step); });
  return tied;
}

void hand_over_state(const std::vector<Slab<float>>& slabs) {
  for (const std::string moment : {AdamRule<Real>::first_moment, AdamRule<Real>::second_moment})
    std::ranges::copy(find(slabs, moment + "head").data, find(slabs, moment + "embedding").data.begin());
}

}  // namespace nanorun
