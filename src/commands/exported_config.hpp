#pragma once
// config.json of an exported model: the keys of the deck that say what the model computes, and what other programs ask
// for.

#include <span>
#include <string>

#include "kernels/device/types.hpp"
#include "src/config/config.hpp"
#include "src/run/checkpoint_file.hpp"

namespace nanorun {

/// Keys of [model] that the Python files of an exported model read.
std::span<const char* const> keys_read_by_python();
/// Keys of [model] that only choose the first weights, so that no trained model needs them.
std::span<const char* const> keys_of_first_weights();

/// Finds a key of [model] that the Python files would ignore: it differs from its default, and neither `read` nor
/// keys_of_first_weights() names it. Returns the first one as "model.key = value", or an empty text. model.residual is
/// left out, since it chooses the Python file.
std::string unread_key(const Config& config, std::span<const char* const> read);

/// Type of the matrices and tables of an exported model. Learned scalars are fp32.
enum class ExportedType { fp32, bf16 };

/// The text of config.json for the model of `checkpoint` as it is before `step`: its windows, and with YaRN its rotary
/// frequencies, are those of a validation at this step. Throws Error(usage) where the Python files do not compute this
/// model.
std::string exported_config(const std::string& checkpoint, const Config& config, long step, kernels::Token end_of_text,
                            const TokenizerRecord& tokenizer, ExportedType type);

/// What config.json says of a model.
struct DescribedModel {
  Config config;
  TokenizerRecord tokenizer;  ///< has an empty name where the file names no tokenizer
};

/// Reads a config.json. Throws Error(data), one line that names the file and the key.
DescribedModel read_exported_config(const std::string& path);

}  // namespace nanorun
