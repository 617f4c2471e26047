#include "src/export_model.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <vector>

#include "kernels/types.hpp"
#include "src/build.hpp"
#include "src/checkpoint.hpp"
#include "src/config_keys.hpp"
#include "src/error.hpp"
#include "src/export_files.hpp"
#include "src/files.hpp"
#include "src/safetensors.hpp"
#include "src/schedule.hpp"
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

/// What modeling_nanorun.py does not compute, as the deck spells it; empty: it computes all of the model.
std::string beyond_pytorch(const Config& config) {
  const bool short_windows = config.window.layers.find('S') != std::string::npos;
  if (config.model.residual != Residual::unet) return "model.residual = \"scaled\"";
  if (config.model.softcap_kind != kernels::SoftcapKind::tanh) return "model.softcap_kind = \"sigmoid\"";
  if (config.model.tied_head) return "model.tied_head";
  if (config.model.yarn) return "model.yarn";
  if (config.window.kind == WindowKind::tokens_before) return "window.kind = \"tokens_before\"";
  if (short_windows && !config.stage.empty()) return "stage.N.short_window";  // it takes half the long window
  if (short_windows && config.validation.last_long_window > 0) return "validation.last_long_window";
  return "";
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

/// The window is the one that the model has been trained to.
std::string config_json(Config config, int window, Token end_of_text, bool bf16) {
  config.window.first = config.window.last = window;
  Json json = {{"architectures", {"NanorunForCausalLM"}},
               {"model_type", "nanorun"},
               {"auto_map",
                {{"AutoConfig", "configuration_nanorun.NanorunConfig"},
                 {"AutoModelForCausalLM", "modeling_nanorun.NanorunForCausalLM"}}},
               {"torch_dtype", bf16 ? "bfloat16" : "float32"},
               {"vocab_size", config.model.vocabulary},
               {"hidden_size", config.model.width},
               {"num_hidden_layers", config.model.layers},
               {"num_attention_heads", config.model.heads},
               {"max_position_embeddings", longest_length(config)},
               {"bos_token_id", end_of_text},
               {"eos_token_id", end_of_text},
               {"tie_word_embeddings", false},
               {"use_cache", false},
               {"nanorun_version", build().version}};
  for (const char* section : sections) {
    for (const Key& key : key_table()) {
      if (key.section == std::string(section)) json[section][key.name] = value_of(key, config);
    }
  }
  return json.dump(2) + "\n";
}

/// The deck of an imported model. Throws Error(data).
Config read_config(const std::string& path) {
  const auto refuse = [&](const std::string& reason) { throw Error(ExitCode::data, path + ": " + reason); };
  const Json json = Json::parse(read_text(path, max_config_bytes, ExitCode::data), nullptr, false);
  if (!json.is_object()) refuse("not a JSON object");
  if (json.value("model_type", Json()) != "nanorun") refuse("its model_type is not \"nanorun\"");
  std::vector<std::string> overrides;
  for (const char* section : sections) {
    for (const Key& key : key_table()) {
      if (key.section != std::string(section)) continue;
      const Json keys = json.value(section, Json());
      const bool known = keys.is_object() && keys.contains(key.name);
      if (!known && std::ranges::find(always_there, key.path()) != std::end(always_there)) {
        refuse("lacks " + key.path());
      }
      if (!known) continue;
      overrides.push_back(key.path() + "=" + keys[key.name].dump());
    }
  }
  if (!json.contains("max_position_embeddings")) refuse("lacks max_position_embeddings");
  for (const char* key : {"train.length", "validation.length"})
    overrides.push_back(fmt::format("{}={}", key, json["max_position_embeddings"].dump()));
  overrides.push_back("validation.tokens=0");
  try {
    Config config = parse_deck("", path, overrides);
    check_model(config);
    const std::string beyond = beyond_pytorch(config);
    if (!beyond.empty()) throw Error(ExitCode::data, beyond + " is not one of the models that can be exported");
    return config;
  } catch (const Error& error) {
    const std::string what = error.what();
    refuse(what.substr(0, what.find('\n')));
    throw;
  }
}

// --- model.safetensors -----------------------------------------------------------------------------------------------

bool is_scalar(const Parameter& parameter) { return parameter.cols == 1; }

std::vector<std::uint64_t> shape_of(const Parameter& parameter) {
  const auto cols = static_cast<std::uint64_t>(parameter.cols);
  const std::uint64_t rows = parameter.size() / cols;
  return is_scalar(parameter) ? std::vector{rows} : std::vector{rows, cols};
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
    } else {
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
  const std::string beyond = beyond_pytorch(config);
  if (!beyond.empty()) {
    throw Error(ExitCode::usage, fmt::format("{}: the PyTorch files do not compute {}: such a model cannot be exported",
                                             options.checkpoint, beyond));
  }
  const ParameterTable table(config.model);
  require_own_model(header, table, options.checkpoint);
  const int window = validation_windows(config, header.progress.step).long_tokens;
  const std::string json =
      config_json(config, window, end_of_text_of(options.checkpoint, config, options.end_of_text), options.bf16);
  require_empty(options);
  make_directories(options.directory, ExitCode::output);
  const std::string model = options.directory + "/model.safetensors";
  require_free(model, options.force, {&options.checkpoint, 1}, ExitCode::output);
  claim_output(model, options.force, ExitCode::output);  // keeps a second command away from all files
  complete_file(model, ExitCode::output, [&](const std::string& partial) {
    write_tensors(partial, options, header, table);
    replace_text(options.directory + "/configuration_nanorun.py", ExitCode::output, configuration_nanorun_py);
    replace_text(options.directory + "/modeling_nanorun.py", ExitCode::output, modeling_nanorun_py);
    replace_text(options.directory + "/config.json", ExitCode::output, json);
  });
}

void import_model(const ImportOptions& options) {
  const Config config = read_config(options.directory + "/config.json");
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
  Comm alone(MPI_COMM_SELF);
  claim_output(options.checkpoint, options.force, ExitCode::output);
  complete_file(options.checkpoint, ExitCode::output, [&](const std::string& partial) {
    write_checkpoint(alone, partial, header, checkpoint_slabs(table, weights, zeros));
  });
}

}  // namespace nanorun
