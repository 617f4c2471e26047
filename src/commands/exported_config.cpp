#include "src/commands/exported_config.hpp"

#include <algorithm>
#include <charconv>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/attention/attention.hpp"
#include "src/base/build.hpp"
#include "src/base/error.hpp"
#include "src/base/files.hpp"
#include "src/base/json_text.hpp"
#include "src/config/config_keys.hpp"
#include "src/config/schedule.hpp"

namespace nanorun {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t max_config_bytes = std::uint64_t{1} << 20;
constexpr int max_config_depth = 8;  ///< a config.json nests less

/// Keys of [model] that src/commands/pytorch/*.py read. A test compares them with these files.
constexpr const char* read_by_python[] = {
    "vocabulary",
    "width",
    "heads",
    "head_dim",
    "qk_dims",
    "qk_norm",
    "layers",
    "mlp_ratio",
    "norm_eps",
    "value_path",
    "value_embeddings",
    "rotary",
    "rotary_base",
    "rotary_frequencies",
    "attention_scale",
    "attention_scale_narrow",
    "softcap",
    "softcap_kind",
    "softcap_shift",
    "softcap_width",
    "tied_head",
    "value_layers",
    "smear",
    "value_layers_gated_by_input",
    "bigram_rows",
    "bigram_columns",
    "bigram_sign_rows",
    "skip_from",
    "skip_to",
    "skip_gate",
    "gate_columns",
    "value_tables",
    "second_embedding",
    "backout_from",
    "paired_layers",
    "xsa_layers",
    "attention_source",
    "gated_layers",
    "composed_layers",
    "key_offset_layers",
    "gate_nets",
    "gate_net_layer",
    "composition_window",
    "mudd",
    "mudd_scale",
    "coefficient_width",
    "mudd_value_scale",
    "layers_without_attention",
    "embedding_norm",
    "norm_gains",
    "biases",
    "head_bias",
};
constexpr const char* of_first_weights[] = {"init_scale",     "zero_outputs",         "zero_attention_outputs",
                                            "init_embedding", "init_value_embedding", "mudd_backout",
                                            "init_std",       "init_std_outputs",     "init_scale_mlp",
                                            "init_residual",  "init_embedding2"};

/// Fields of config.json beside the sections of the deck. Export writes some of them; transformers adds the others when
/// it writes the file anew.
constexpr const char* known_fields[] = {
    "architectures",
    "model_type",
    "auto_map",
    "torch_dtype",
    "vocab_size",
    "hidden_size",
    "dtype",
    "num_hidden_layers",
    "num_attention_heads",
    "bos_token_id",
    "eos_token_id",
    "max_position_embeddings",
    "tie_word_embeddings",
    "use_cache",
    "nanorun_version",
    "nanorun_tokenizer",
    "transformers_version",
    "_name_or_path",
    "name_or_path",
    "_commit_hash",
    "_attn_implementation",
    "attn_implementation",
    "pad_token_id",
    "_attn_implementation_autoset",
    "chunk_size_feed_forward",
    "is_encoder_decoder",
    "is_decoder",
    "id2label",
    "label2id",
    "output_hidden_states",
    "return_dict",
    "output_attentions",
    "problem_type",
    "_experts_implementation",
    "experts_implementation",
    "num_labels",
};

/// Sections of the deck that say what the model computes.
constexpr const char* sections[] = {"model", "window"};
/// Keys without which a file is no description of a model; others take their defaults, as models of older versions do.
const std::string always_there[] = {"model.vocabulary", "model.width", "model.heads", "model.layers", "window.layers"};

/// Keys of [[stage]] that say what the model computes.
const std::string stage_windows[] = {"short_window", "long_window"};
/// Keys of [data] that say so, where attention stays within rows.
const std::string data_rows[] = {"packing", "row_length"};

/// A deck whose step 0 is the model as it is before `step`: its windows, rotary frequencies and attention_scale are the
/// ones that stages and YaRN give at this step. The deck has a stage if `config` has some, or if the short window is
/// not the one that the long window implies.
Config settled(const Config& config, long step) {
  const Windows windows = validation_windows(config, step);
  Config now = config;
  if (config.model.yarn) {
    const RotaryStage rotary = rotary_stage(config, stage_of(config, step));
    now.model.yarn = false;
    now.model.yarn_last_window = 0;
    now.model.rotary_frequencies = rotary.frequencies;
    now.model.rotary_frequencies.resize(turning_pairs(config.model));
    now.model.attention_scale = rotary.attention_scale;
    now.model.attention_scale_narrow = rotary.attention_scale_narrow;
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

/// A class in src/commands/pytorch/*.py.
struct PythonClass {
  std::string file, name;
};

/// By model.residual.
PythonClass class_of(const std::string& residual) {
  if (residual == "scaled") return {"modeling_nanorun_scaled", "ScaledNanorunForCausalLM"};
  if (residual == "before") return {"modeling_nanorun_before", "BeforeNanorunForCausalLM"};
  if (residual == "plain") return {"modeling_nanorun_plain", "PlainNanorunForCausalLM"};
  return {"modeling_nanorun", "NanorunForCausalLM"};
}

/// Text of config.json for a settled() deck.
std::string text_of(Config config, Token end_of_text, const TokenizerRecord& tokenizer, ExportedType type) {
  const Key& residual = *std::ranges::find(key_table(), "model.residual", [](const Key& key) { return key.path(); });
  const auto [file, name] = class_of(value_of(residual, config));
  Json json = {{"architectures", {name}},
               {"model_type", "nanorun"},
               {"auto_map",
                {{"AutoConfig", "configuration_nanorun.NanorunConfig"},
                 {"AutoModelForCausalLM", fmt::format("{}.{}", file, name)}}},
               {"torch_dtype", type == ExportedType::bf16 ? "bfloat16" : "float32"},
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
  for (const Key& key : key_table()) {
    const bool wanted = key.section == std::string("data") && std::ranges::count(data_rows, key.name) > 0;
    if (wanted && config.data.packing == Packing::rows) json["data"][key.name] = value_of(key, config);
  }
  return json.dump(2) + "\n";
}

/// Throws Error(data), with a message that lacks the file, where the value is no object, or one with a key that `known`
/// refuses: of another version, or misspelled, so that the model would be another one. `section` is its path with a dot
/// at the end. A value that is not there has no keys.
template <class Known>
void require_known_keys(const Json& object, const std::string& section, Known&& known) {
  if (!object.is_object() && !object.is_null())
    throw Error(ExitCode::data, fmt::format("{} = {}: not a JSON object", section.substr(0, section.size() - 1),
                                            excerpt(object.dump())));
  for (const auto& [key, value] : object.items()) {
    if (!known(key))
      throw Error(ExitCode::data,
                  fmt::format("{}{}: unknown key: correct its name, or remove it", section, excerpt(key)));
  }
}

/// Throws Error(data) where a key is unknown in config.json, in one of its sections, or in its stage.
void require_known_keys(const Json& json) {
  const auto is_one_of = [](const auto& names) {
    return [&names](const std::string& key) { return std::ranges::count(names, key) > 0; };
  };
  require_known_keys(json, "", [](const std::string& key) {
    return std::ranges::count(known_fields, key) > 0 || std::ranges::count(sections, key) > 0 || key == "stage" ||
           key == "data";
  });
  for (const std::string section : sections) {
    require_known_keys(json.value(section, Json()), section + ".", [&](const std::string& name) {
      return std::ranges::any_of(key_table(),
                                 [&](const Key& key) { return key.section == section && key.name == name; });
    });
  }
  if (json.contains("stage") && json["stage"].is_array() && json["stage"].size() == 1)
    require_known_keys(json["stage"][0], "stage.0.", is_one_of(stage_windows));
  require_known_keys(json.value("data", Json()), "data.", is_one_of(data_rows));
}

/// The rows of config.json, an object, as overrides of a deck. Throws Error(data), with a message that lacks the file.
void append_rows(std::vector<std::string>& overrides, const Json& data, int positions) {
  for (const std::string& name : data_rows) {
    if (!data.is_object() || !data.contains(name)) throw Error(ExitCode::data, "lacks data." + name);
    overrides.push_back(fmt::format("data.{}={}", name, data[name].dump()));
  }
  if (data["packing"] != "rows") {
    throw Error(ExitCode::data,
                fmt::format("data.packing = {}: a model has \"rows\", or no data", excerpt(data["packing"].dump())));
  }
  const Json& row = data["row_length"];
  if (!row.is_number_integer() || row < 1 || row > positions || positions % row.get<int>() != 0) {
    throw Error(ExitCode::data, fmt::format("data.row_length = {}: must divide max_position_embeddings = {}",
                                            excerpt(row.dump()), positions));
  }
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
  if (json.contains("data")) append_rows(overrides, json["data"], positions.get<int>());
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
  const auto field = [&](const char* name) { return json.value(name, Json()); };
  const auto refuse = [&](const char* name, const std::string& but) {
    throw Error(ExitCode::data, fmt::format("{} = {}, but {}", name, excerpt(field(name).dump()), but));
  };
  // Export writes false for every model, since the model ties its weights itself.
  const bool is_tied = model.value("tied_head", Json()) == true;
  if (const Json tie = field("tie_word_embeddings"); !tie.is_null() && tie != false && !(is_tied && tie == true))
    refuse("tie_word_embeddings", fmt::format("model.tied_head = {}", is_tied));
  const Json residual = model.value("residual", Json("unet"));
  const Json names = Json::array({class_of(residual.is_string() ? residual.get<std::string>() : "").name});
  if (const Json given = field("architectures"); !given.is_null() && given != names)
    refuse("architectures",
           fmt::format("the class for model.residual = {} is {}", excerpt(residual.dump()), names.dump()));
  // Transformers takes a list of tokens, too.
  const auto token_field = [&](const char* name) {
    const Json given = field(name), token = given.is_array() && given.size() == 1 ? given[0] : given;
    if (token.is_null()) return token;
    if (!token.is_number_integer()) refuse(name, "documents begin and end with one token: give its id");
    const Json& vocabulary = model["vocabulary"];
    if (token < 0 || token >= vocabulary) refuse(name, "model.vocabulary = " + excerpt(vocabulary.dump()));
    return token;
  };
  const Json begin = token_field("bos_token_id"), end = token_field("eos_token_id");
  if (!begin.is_null() && !end.is_null() && begin != end) refuse("bos_token_id", "eos_token_id = " + end.dump());
}

/// The first line of an error of a deck's overrides, which the user has written as fields of the file.
std::string of_a_field(std::string what) {
  constexpr std::string_view prefix = "override ";
  what.erase(std::min({what.size(), what.find('\n'), what.find("; put the override")}));
  return what.starts_with(prefix) ? what.substr(prefix.size()) : what;
}

}  // namespace

std::span<const char* const> keys_read_by_python() { return read_by_python; }
std::span<const char* const> keys_of_first_weights() { return of_first_weights; }

std::string unread_key(const Config& config, std::span<const char* const> read) {
  Config set = config, unset;
  for (const Key& key : key_table()) {
    const auto named_in = [&](std::span<const char* const> names) {
      return std::ranges::find(names, std::string_view(key.name)) != names.end();
    };
    const bool chooses_file = key.path() == "model.residual";
    if (key.section != std::string("model") || chooses_file || named_in(read) || named_in(of_first_weights)) continue;
    const Json value = value_of(key, set);
    if (value != value_of(key, unset)) return fmt::format("{} = {}", key.path(), value.dump());
  }
  return {};
}

std::string exported_config(const std::string& checkpoint, const Config& config, long step, Token end_of_text,
                            const TokenizerRecord& tokenizer, ExportedType type) {
  const Config model = settled(config, step);
  if (const std::string unread = unread_key(model, read_by_python); !unread.empty()) {
    throw Error(ExitCode::usage, fmt::format("{}: {}: the exported forward pass in PyTorch does not know this key and "
                                             "would compute another model",
                                             checkpoint, unread));
  }
  return text_of(model, end_of_text, tokenizer, type);
}

DescribedModel read_exported_config(const std::string& path) {
  const auto refuse = [&](const std::string& reason) { throw Error(ExitCode::data, path + ": " + reason); };
  const std::string text = read_text(path, max_config_bytes, ExitCode::data);
  Json json;
  try {
    json = parse_json<Json>(text, max_config_depth);
  } catch (const std::runtime_error& error) {
    refuse(error.what());
  }
  if (!json.is_object()) refuse("not a JSON object");
  if (json.value("model_type", Json()) != "nanorun") refuse("its model_type is not \"nanorun\"");
  try {
    const std::string stage = json.contains("stage") ? "[[stage]]\nshare = 1\n" : "";
    require_known_keys(json);
    const std::vector<std::string> overrides = model_overrides(json);
    Config config = parse_deck(stage, path, overrides);
    require_agreement(json);
    if (config.model.yarn)
      throw Error(ExitCode::data, "model.yarn = true: give model.rotary_frequencies and model.attention_scale instead");
    check_model(config);
    return {std::move(config), recorded_tokenizer(json)};
  } catch (const Error& error) {
    refuse(of_a_field(error.what()));
    throw;
  }
}

}  // namespace nanorun
