#include "src/export_model.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/attention.hpp"
#include "kernels/types.hpp"
#include "src/build.hpp"
#include "src/checkpoint.hpp"
#include "src/config_keys.hpp"
#include "src/error.hpp"
#include "src/export_files.hpp"
#include "src/output_file.hpp"
#include "src/safetensors.hpp"
#include "src/schedule.hpp"
#include "src/tokenizer_table.hpp"
#include "src/trained_model.hpp"

namespace nanorun {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t max_config_bytes = std::uint64_t{1} << 20;

// --- config.json -----------------------------------------------------------------------------------------------------

/// Sections of the deck that say what the model computes.
constexpr const char* sections[] = {"model", "window"};
/// Keys without which a file is no description of a model; others take their defaults, as models of older versions do.
const std::string always_there[] = {"model.vocabulary", "model.width", "model.heads", "model.layers", "window.layers"};

/// Of [[stage]], the keys that say what the model computes.
const std::string stage_windows[] = {"short_window", "long_window"};

/// The deck of the model as it is before a step, and at step 0 of its own: a stage and YaRN have left their mark on
/// windows, rotary frequencies and attention_scale. With a stage where the deck has some, or where the short window is
/// not what the long one implies.
Config settled(const Config& config, long step) {
  const Windows windows = validation_windows(config, step);
  Config now = config;
  if (config.model.yarn) {
    const RotaryStage rotary = rotary_stage(config, stage_of(config, step));
    now.model.yarn = false;
    now.model.rotary_frequencies = rotary.frequencies;
    now.model.rotary_frequencies.resize(turning_pairs(config.model));
    now.model.attention_scale = rotary.attention_scale;
  }
  now.train.length = longest_length(config);
  now.window.first = now.window.last = windows.long_tokens;
  now.validation.last_long_window = 0;
  now.stage.clear();
  if (!config.stage.empty() || windows_at(now, 0) != windows) {
    now.stage.resize(1);
    now.stage[0].share = 1;
    now.stage[0].length = now.train.length;
    now.stage[0].short_window = windows.short_tokens;
    now.stage[0].long_window = windows.long_tokens;
  }
  return now;
}

/// The value of a key as the deck spells it.
Json value_of(const Key& key, Config& config) {
  return std::visit(
      []<class V>(const V* member) -> Json {
        if constexpr (std::is_enum_v<V>) {
          for (const Named<V>& named : names_of<V>) {
            if (named.value == *member) return named.name;
          }
          return nullptr;
        } else {
          return *member;
        }
      },
      key.field(config));
}

/// Of a settled() deck.
std::string config_json(Config config, Token end_of_text, const TokenizerRecord& tokenizer, bool bf16) {
  const bool unet = config.model.residual == Residual::unet;
  const std::string file = unet ? "modeling_nanorun" : "modeling_nanorun_scaled";
  const std::string name = unet ? "NanorunForCausalLM" : "ScaledNanorunForCausalLM";
  Json json = {{"architectures", {name}},
               {"model_type", "nanorun"},
               {"auto_map",
                {{"AutoConfig", "configuration_nanorun.NanorunConfig"},
                 {"AutoModelForCausalLM", fmt::format("{}.{}", file, name)}}},
               {"torch_dtype", bf16 ? "bfloat16" : "float32"},
               {"vocab_size", config.model.vocabulary},
               {"hidden_size", config.model.width},
               {"num_hidden_layers", config.model.layers},
               {"num_attention_heads", config.model.heads},
               {"max_position_embeddings", config.train.length},
               {"bos_token_id", end_of_text},
               {"eos_token_id", end_of_text},
               {"tie_word_embeddings", false},
               {"use_cache", false},
               {"nanorun_version", build().version}};
  if (!tokenizer.name.empty())
    json["nanorun_tokenizer"] = {{"name", tokenizer.name}, {"checksum", fmt::format("{:016x}", tokenizer.checksum)}};
  for (const char* section : sections) {
    for (const Key& key : key_table()) {
      if (key.section == std::string(section)) json[section][key.name] = value_of(key, config);
    }
  }
  for (const Key& key : key_table()) {
    const bool wanted = key.section == std::string("stage") && std::ranges::count(stage_windows, key.name) > 0;
    if (wanted && !config.stage.empty()) json["stage"][0][key.name] = value_of(key, config);
  }
  return json.dump(2) + "\n";
}

/// The keys of the model in config.json as overrides of a deck. Throws Error(data), with a message that lacks the file.
std::vector<std::string> model_overrides(const Json& json) {
  const auto refuse = [](const std::string& reason) { throw Error(ExitCode::data, reason); };
  std::vector<std::string> overrides;
  for (const char* section : sections) {
    const Json keys = json.value(section, Json());
    for (const Key& key : key_table()) {
      if (key.section != std::string(section)) continue;
      const bool known = keys.is_object() && keys.contains(key.name);
      if (!known && std::ranges::find(always_there, key.path()) != std::end(always_there)) {
        refuse("lacks " + key.path());
      }
      if (known) overrides.push_back(key.path() + "=" + keys[key.name].dump());
    }
  }
  if (!json.contains("max_position_embeddings")) refuse("lacks max_position_embeddings");
  const Json& positions = json["max_position_embeddings"];
  const std::string length = positions.dump();
  constexpr int block = kernels::attention_block;
  if (!positions.is_number_integer() || positions < block || positions > max_length ||
      positions.get<int>() % block != 0) {
    refuse(fmt::format("max_position_embeddings = {}: must be a multiple of {} from {} to {}", excerpt(length), block,
                       block, max_length));
  }
  for (const char* key : {"train.length", "validation.length"}) overrides.push_back(fmt::format("{}={}", key, length));
  overrides.push_back("validation.tokens=0");
  if (!json.contains("stage")) return overrides;
  const Json& stages = json["stage"];
  if (!stages.is_array() || stages.size() != 1 || !stages[0].is_object())
    refuse("its stage is not a list of one object");
  overrides.push_back("stage.0.length=" + length);
  for (const std::string& name : stage_windows) {
    if (!stages[0].contains(name)) refuse("lacks stage.0." + name);
    overrides.push_back(fmt::format("stage.0.{}={}", name, stages[0][name].dump()));
  }
  return overrides;
}

/// The tokenizer that the model was trained with. Throws Error(data), with a message that lacks the file.
TokenizerRecord recorded_tokenizer(const Json& json) {
  if (!json.contains("nanorun_tokenizer")) return {};
  constexpr std::size_t max_name = 64, digits = 16;
  const Json& entry = json["nanorun_tokenizer"];
  const auto text = [&](const char* key) {
    const Json value = entry.is_object() ? entry.value(key, Json()) : Json();
    return value.is_string() ? value.get<std::string>() : "";
  };
  const std::string name = text("name"), checksum = text("checksum");
  TokenizerRecord record{name};
  const auto [end, error] = std::from_chars(checksum.data(), checksum.data() + checksum.size(), record.checksum, 16);
  const bool is_printable = std::ranges::all_of(name, [](char c) { return c > ' ' && c <= '~'; });
  if (name.empty() || name.size() > max_name || !is_printable || error != std::errc() || checksum.size() != digits ||
      end != checksum.data() + digits) {
    throw Error(ExitCode::data, "its nanorun_tokenizer has not a name and a checksum of 16 hexadecimal digits");
  }
  return record;
}

/// Fields of config.json by which other programs know a model, and the keys that say the same here.
constexpr std::pair<const char*, const char*> common_fields[] = {{"vocab_size", "vocabulary"},
                                                                 {"hidden_size", "width"},
                                                                 {"num_hidden_layers", "layers"},
                                                                 {"num_attention_heads", "heads"}};

/// Throws Error(data), with a message that lacks the file, where a field contradicts its key.
void require_agreement(const Json& json) {
  const Json& model = json["model"];
  for (const auto& [field, key] : common_fields) {
    if (!json.contains(field) || json[field] == model[key]) continue;
    throw Error(ExitCode::data, fmt::format("{} = {}, but model.{} = {}", field, excerpt(json[field].dump()), key,
                                            excerpt(model[key].dump())));
  }
}

/// The first line of an error of a deck's overrides, which the user has written as fields of the file.
std::string of_a_field(std::string what) {
  constexpr std::string_view prefix = "override ";
  what.erase(std::min({what.size(), what.find('\n'), what.find("; put the override")}));
  return what.starts_with(prefix) ? what.substr(prefix.size()) : what;
}

/// What config.json says of an imported model.
struct Described {
  Config config;
  TokenizerRecord tokenizer;
};

/// Throws Error(data).
Described read_config(const std::string& path) {
  const auto refuse = [&](const std::string& reason) { throw Error(ExitCode::data, path + ": " + reason); };
  const Json json = Json::parse(read_text(path, max_config_bytes, ExitCode::data), nullptr, false);
  if (!json.is_object()) refuse("not a JSON object");
  if (json.value("model_type", Json()) != "nanorun") refuse("its model_type is not \"nanorun\"");
  try {
    const std::string stage = json.contains("stage") ? "[[stage]]\nshare = 1\n" : "";
    const std::vector<std::string> overrides = model_overrides(json);
    require_agreement(json);
    Config config = parse_deck(stage, path, overrides);
    if (config.model.yarn)
      throw Error(ExitCode::data, "model.yarn = true: give model.rotary_frequencies and model.attention_scale instead");
    check_model(config);
    return {std::move(config), recorded_tokenizer(json)};
  } catch (const Error& error) {
    refuse(of_a_field(error.what()));
    throw;
  }
}

// --- model.safetensors -----------------------------------------------------------------------------------------------

bool is_scalar(const Parameter& parameter) { return parameter.shared_cols() == 1; }

/// Learned scalars in one row or column are a vector.
std::vector<std::uint64_t> shape_of(const Parameter& parameter) {
  const auto cols = static_cast<std::uint64_t>(parameter.cols);
  const std::uint64_t rows = parameter.size() / cols;
  if (is_scalar(parameter) && (rows == 1 || cols == 1)) return {rows * cols};
  return {rows, cols};
}

bool all_finite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

/// No error: runs that diverge leave such checkpoints, and only the user knows what they are for.
void warn_of_non_finite(const std::string& path, const std::vector<std::string>& tensors) {
  if (tensors.empty()) return;
  const std::size_t others = tensors.size() - 1;
  warn(fmt::format("{}: {}{} hold{} NaN or infinity: the model's loss is no number", path, tensors.front(),
                   others > 0 ? fmt::format(" and {} more tensor{}", others, others > 1 ? "s" : "") : "",
                   others > 0 ? "" : "s"));
}

std::vector<SafeTensor> plan_tensors(const ParameterTable& table, bool bf16) {
  std::vector<SafeTensor> tensors;
  std::uint64_t place = 0;
  for (const Parameter& parameter : table.parameters()) {
    const bool halves = bf16 && !is_scalar(parameter);
    const std::uint64_t bytes = parameter.size() * (halves ? 2 : 4);
    tensors.push_back({parameter.name, halves ? "BF16" : "F32", shape_of(parameter), place, place + bytes});
    place += bytes;
  }
  return tensors;
}

/// One tensor in memory at a time, its checksum verified.
void write_tensors(const std::string& path, const ExportOptions& options, const CheckpointHeader& header,
                   const ParameterTable& table) {
  Comm alone(MPI_COMM_SELF);
  const std::vector<SafeTensor> tensors = plan_tensors(table, options.bf16);
  std::vector<Slab<float>> slabs = weight_slabs(table);
  std::vector<float> values;
  std::vector<kernels::bf16> halves;
  std::vector<std::string> non_finite;
  AppendFile file(path, ExitCode::output);
  file.write(safetensors_header(tensors));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    values.resize(table.parameters()[i].size());
    slabs[i].data = values;
    read_tensors(alone, options.checkpoint, header, {slabs[i]});
    if (!all_finite(values)) non_finite.push_back(tensors[i].name);
    if (tensors[i].type == "F32") {
      file.write(std::as_bytes(std::span(values)));
    } else {
      halves.clear();
      for (const float value : values) halves.push_back(kernels::to_bf16(value));
      file.write(std::as_bytes(std::span(halves)));
    }
  }
  file.close();
  warn_of_non_finite(options.checkpoint, non_finite);
}

void write_python(const std::string& directory, const ModelConfig& model) {
  const auto write = [&](const char* name, const char* text) {
    replace_text(directory + "/" + name, ExitCode::output, text);
  };
  write("configuration_nanorun.py", configuration_nanorun_py);
  write("modeling_nanorun.py", modeling_nanorun_py);
  if (model.residual == Residual::scaled) write("modeling_nanorun_scaled.py", modeling_nanorun_scaled_py);
}

// --- Tokenizer -------------------------------------------------------------------------------------------------------

constexpr const char* table_of_merges[] = {"vocab.json", "merges.txt"};
constexpr const char* table_as_json = "tokenizer.json";

/// Throws Error(output) where AutoTokenizer would read another table than the one that is written.
void require_no_other_table(const std::string& directory) {
  const std::string other = directory + "/" + table_as_json;
  if (kind_of(other, ExitCode::output) == FileKind::absent) return;
  throw Error(ExitCode::output, fmt::format("{}: transformers would read it in place of {} and {}: move it away", other,
                                            table_of_merges[0], table_of_merges[1]));
}

/// What transformers' AutoTokenizer loads: a tokenizer.json as it is, other tables as those of GPT-2.
void write_tokenizer(const ExportOptions& options, const TokenizerTable& table, int length) {
  const auto write = [&](const char* name, const std::string& text) {
    replace_text(options.directory + "/" + name, ExitCode::output, text);
  };
  if (table.from_json) {
    write(table_as_json, read_text(options.tokenizer, max_table_bytes, ExitCode::data));
  } else {
    write(table_of_merges[0], vocab_json(table));
    write(table_of_merges[1], merges_txt(table));
  }
  const Json settings = {{"tokenizer_class", table.from_json ? "PreTrainedTokenizerFast" : "GPT2Tokenizer"},
                         {"bos_token", end_of_text_symbol},
                         {"eos_token", end_of_text_symbol},
                         {"unk_token", end_of_text_symbol},
                         {"add_prefix_space", false},
                         {"clean_up_tokenization_spaces", false},
                         {"model_max_length", length}};
  write("tokenizer_config.json", settings.dump(2) + "\n");
}

/// The tokenizer that the user names; none where the user names none. Throws Error(usage, data, output).
std::optional<Tokenizer> load_tokenizer(const ExportOptions& options, const CheckpointHeader& header,
                                        const Config& config) {
  if (options.tokenizer.empty()) return std::nullopt;
  Tokenizer tokenizer(options.tokenizer);
  require_own_tokenizer(header, config, options.checkpoint, tokenizer, options.tokenizer);
  if (options.end_of_text.value_or(tokenizer.end_of_text()) != tokenizer.end_of_text()) {
    throw Error(ExitCode::usage, fmt::format("--end-of-text {}: the end-of-text token of {} is {}",
                                             *options.end_of_text, options.tokenizer, tokenizer.end_of_text()));
  }
  if (!tokenizer.table().from_json) require_no_other_table(options.directory);
  return tokenizer;
}

void require_empty(const ExportOptions& options) {
  if (options.force || kind_of(options.directory, ExitCode::output) == FileKind::absent) return;
  const std::vector<std::string> names = list_directory(options.directory, ExitCode::output);
  if (names.empty()) return;
  throw Error(ExitCode::output, fmt::format("{}: holds {} already; name another directory, or write into it with "
                                            "--force",
                                            options.directory, excerpt(names.front())));
}

// --- Import ----------------------------------------------------------------------------------------------------------

/// The tensors of the file in the order of the table. Throws where they are not those of the table.
std::vector<SafeTensor> match_tensors(const std::string& path, const SafeTensors& file, const ParameterTable& table) {
  const auto refuse = [&](const std::string& reason) { throw Error(ExitCode::data, path + ": " + reason); };
  std::vector<SafeTensor> tensors;
  for (const Parameter& parameter : table.parameters()) {
    const auto found = std::ranges::find(file.tensors, parameter.name, &SafeTensor::name);
    if (found == file.tensors.end()) refuse("lacks the tensor " + parameter.name);
    if (found->shape != shape_of(parameter)) refuse(parameter.name + ": has not the shape that config.json says");
    tensors.push_back(*found);
  }
  for (const SafeTensor& tensor : file.tensors) {
    if (std::ranges::find(tensors, tensor.name, &SafeTensor::name) == tensors.end())
      refuse(fmt::format("holds {}, which is no tensor of the model", excerpt(tensor.name)));
  }
  return tensors;
}

/// What a checkpoint of the table holds: its weights are in `weights` [table.size()], the optimizer's state is zeros.
std::vector<Slab<float>> checkpoint_slabs(const ParameterTable& table, std::span<float> weights,
                                          std::vector<float>& zeros) {
  std::vector<Slab<float>> slabs = weight_slabs(table);
  const std::size_t count = slabs.size();
  for (const Parameter& parameter : table.parameters()) zeros.resize(std::max(zeros.size(), parameter.size()));
  for (std::size_t i = 0; i < count; ++i) {
    const Parameter& parameter = table.parameters()[i];
    slabs[i].data = weights.subspan(parameter.offset, parameter.size());
    const auto add = [&](const char* group) {
      Slab<float> slab = slabs[i];
      slab.dataset = group + parameter.name;
      slab.data = std::span(zeros).first(parameter.size());
      slabs.push_back(std::move(slab));
    };
    if (parameter.group == Group::matrix) {
      add("/muon/momentum/");
    } else if (parameter.group != Group::fixed) {
      add("/adam/m/"), add("/adam/v/");
    }
  }
  return slabs;
}

}  // namespace

void export_model(const ExportOptions& options) {
  Comm alone(MPI_COMM_SELF);
  const CheckpointHeader header = read_checkpoint_header(alone, options.checkpoint);
  const Config config = parse_deck(header.deck, options.checkpoint, {});
  const ParameterTable table(config.model);
  require_own_model(header, table, options.checkpoint);
  const std::optional<Tokenizer> tokenizer = load_tokenizer(options, header, config);
  const Token end_of_text =
      tokenizer ? tokenizer->end_of_text() : end_of_text_of(options.checkpoint, config, options.end_of_text);
  const std::string json = config_json(settled(config, header.progress.step), end_of_text,
                                       tokenizer ? tokenizer->record() : header.tokenizer, options.bf16);
  require_empty(options);
  make_directories(options.directory, ExitCode::output);
  const std::string model = options.directory + "/model.safetensors";
  require_free(model, options.force, {&options.checkpoint, 1}, ExitCode::output);
  claim_output(model, options.force, ExitCode::output);  // keeps a second command away from all files
  complete_file(model, ExitCode::output, [&](const std::string& partial) {
    write_tensors(partial, options, header, table);
    write_python(options.directory, config.model);
    if (tokenizer) write_tokenizer(options, tokenizer->table(), longest_length(config));
    replace_text(options.directory + "/config.json", ExitCode::output, json);
  });
}

void import_model(const ImportOptions& options, const std::string& provenance) {
  const auto [config, tokenizer] = read_config(options.directory + "/config.json");
  const std::string path = options.directory + "/model.safetensors";
  const SafeTensors file = read_safetensors(path);
  const ParameterTable table(config.model);
  const std::vector<SafeTensor> tensors = match_tensors(path, file, table);
  const std::array inputs = {path, options.directory + "/config.json"};
  require_free(options.checkpoint, options.force, inputs, ExitCode::output);
  std::vector<float> weights(table.size()), zeros;
  std::vector<std::string> non_finite;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Parameter& parameter = table.parameters()[i];
    const std::span<float> values = std::span(weights).subspan(parameter.offset, parameter.size());
    read_safetensor(path, file, tensors[i], values);
    if (!all_finite(values)) non_finite.push_back(parameter.name);
  }
  warn_of_non_finite(path, non_finite);
  CheckpointHeader header;
  header.model = model_fingerprint(table.layout());
  header.deck = to_toml(config);
  header.tokenizer = tokenizer;
  header.provenance = provenance;
  Comm alone(MPI_COMM_SELF);
  claim_output(options.checkpoint, options.force, ExitCode::output);
  complete_file(options.checkpoint, ExitCode::output, [&](const std::string& partial) {
    write_checkpoint(alone, partial, header, checkpoint_slabs(table, weights, zeros));
  });
}

}  // namespace nanorun
