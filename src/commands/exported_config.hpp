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
/// Keys of [model] that no trained model needs: those of its first weights alone.
std::span<const char* const> keys_of_first_weights();

/// The first key of [model] that is set otherwise than by default and that neither `read` nor keys_of_first_weights()
/// names, as "model.key = value"; empty where there is none. model.residual chooses the Python file.
std::string unread_key(const Config& config, std::span<const char* const> read);

/// Type of the matrices and tables of an exported model. Learned scalars are fp32.
enum class ExportedType { fp32, bf16 };

/// The file's text for the model of `checkpoint`, as it is before `step`: windows, and with YaRN frequencies, are those
/// of a validation at that step. Throws Error(usage) where the Python files do not compute such a model.
std::string exported_config(const std::string& checkpoint, const Config& config, long step, kernels::Token end_of_text,
                            const TokenizerRecord& tokenizer, ExportedType type);

/// What config.json says of a model.
struct DescribedModel {
  Config config;
  TokenizerRecord tokenizer;  ///< without a name where the file says nothing of it
};

/// Throws Error(data), one line that names the file and the key.
DescribedModel read_exported_config(const std::string& path);

}  // namespace nanorun
