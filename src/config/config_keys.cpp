#include "src/config/config_keys.hpp"

#include <fmt/format.h>

#include "src/config/config_key_rows.hpp"

namespace nanorun {

const std::vector<Key>& key_table() {
  static const std::vector<Key> table = [] {
    std::vector<Key> all;
    using namespace key_rows;
    for (auto rows :
         {run_keys,       model_keys,   stream_keys,         coefficient_keys, lm_head_keys,    window_keys,
          train_keys,     fp8_mlp_keys, fp8_qkv_keys,        stage_keys,       validation_keys, data_keys,
          optimizer_keys, muon_keys,    adam_and_outer_keys, group_keys,       average_keys,    checkpoint_keys,
          stop_keys,      trace_keys,   profile_keys,        comm_keys}) {
      for (Key& key : rows()) all.push_back(std::move(key));
    }
    return all;
  }();
  return table;
}

std::string Key::path(std::optional<std::size_t> row) const {
  if (!has_rows(section)) return fmt::format("{}.{}", section, name);
  return fmt::format("{}.{}.{}", section, row ? fmt::format("{}", *row) : "N", name);
}

bool has_rows(std::string_view section) { return section == "stage" || section == "group" || section == "average"; }

bool has_subsections(std::string_view name) { return name == "fp8"; }

std::size_t row_count(const Config& config, std::string_view section) {
  if (section == "stage") return config.stage.size();
  if (section == "group") return config.group.size();
  return section == "average" ? config.average.size() : 1;
}

void set_row_count(Config& config, std::string_view section, std::size_t count) {
  if (section == "stage") config.stage.resize(count);
  if (section == "group") config.group.resize(count);
  if (section == "average") config.average.resize(count);
}

std::string header_of(std::string_view section) {
  return has_rows(section) ? fmt::format("[[{}]]", section) : fmt::format("[{}]", section);
}

}  // namespace nanorun
