#pragma once
// `nanorun export` of a checkpoint: its model as a directory for PyTorch and Hugging Face's transformers.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/model/params.hpp"

namespace nanorun {

struct ExportOptions {
  std::string checkpoint, directory;
  bool bf16 = false;               ///< rounds matrices and tables to bf16; learned scalars stay fp32
  std::optional<int> end_of_text;  ///< absent: the tokenizer's; or of text as bytes or GPT-2, by the vocabulary
  std::string tokenizer;           ///< tokenizer file that the model was trained with; empty: none is written
  bool force = false;              ///< writes also into a directory that is not empty
};

/// Writes model.safetensors, config.json and the Python files that the model needs; with a tokenizer also the files
/// that transformers' AutoTokenizer loads. Each file is written completely or not at all. One rank calls this. Throws
/// Error: usage where the end-of-text token is not known or not the tokenizer's; data where the tokenizer is not the
/// model's; checkpoint; output.
void export_model(const ExportOptions& options);

/// The shape of a parameter in model.safetensors: [matrices * rows, cols], or [n] for n learned scalars in one row or
/// column.
std::vector<std::uint64_t> exported_shape(const Parameter& parameter);

bool all_finite(std::span<const float> values);
/// Warns on standard error that the named tensors of a file hold NaN or infinity; does nothing without names. It is no
/// error: runs that diverge leave these checkpoints, and only the user knows what they are for.
void warn_of_non_finite(const std::string& path, const std::vector<std::string>& tensors);

}  // namespace nanorun
