#pragma once
// What the rows of the key table are written with: the macros that name a key, bounds, and the checks of its values. A
// row lies in config_keys_model.cpp, config_keys_training.cpp or config_keys_run.cpp, by its section.

#include <string>
#include <vector>

#include "src/config/config_keys.hpp"

namespace nanorun::key_rows {

using enum Role;

// Upper bounds keep multiplied sizes within their types: steps * sequences * length within 64 bits, and
// model.width * model.mlp_ratio within 32. Keys in seconds stay within the range of clocks.
inline constexpr int max_width = 16384;
inline constexpr int max_layers = 1024;
inline constexpr int max_steps = 10'000'000;
inline constexpr int max_bigram_rows = 1 << 24;
inline constexpr double max_seconds = 1e8;

Check any();
Check at_least(double min);
Check above(double bound);
Check above(double bound, double max);
Check between(double min, double max);
Check minus_one_or_at_least(double min);
Check zero_or_between(double min, double max);
Check fraction_below_one();
Check multiple_of(int unit, int max);
Check zero_or_multiple_of(int unit, int max);
Check path();
Check path_or_empty();
Check directory_name();
Check auto_none_or_path();
Check mpi_hints();
Check tensor_names();
Check letters_of_layers();

/// Section, name and member from one spelling, so that they cannot disagree.
#define NANORUN_KEY(section, name) \
#section, #name, [](Config & config, std::size_t) -> Field { return &config.section.name; }
/// NANORUN_KEY of a section that has rows.
#define NANORUN_ROW_KEY(section, name) \
#section, #name, [](Config & config, std::size_t row) -> Field { return &config.section.at(row).name; }

// The rows of each section, in the order of the table.
std::vector<Key> run_keys();
std::vector<Key> model_keys();
std::vector<Key> stream_keys();
std::vector<Key> coefficient_keys();
std::vector<Key> lm_head_keys();
std::vector<Key> window_keys();
std::vector<Key> train_keys();
std::vector<Key> fp8_mlp_keys();
std::vector<Key> fp8_qkv_keys();
std::vector<Key> stage_keys();
std::vector<Key> validation_keys();
std::vector<Key> data_keys();
std::vector<Key> optimizer_keys();
std::vector<Key> muon_keys();
std::vector<Key> adam_and_outer_keys();
std::vector<Key> group_keys();
std::vector<Key> average_keys();
std::vector<Key> checkpoint_keys();
std::vector<Key> stop_keys();
std::vector<Key> trace_keys();
std::vector<Key> profile_keys();
std::vector<Key> comm_keys();

}  // namespace nanorun::key_rows
