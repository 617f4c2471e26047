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
  bool bf16 = false;               ///< matrices and tables rounded to bf16; the learned scalars stay fp32
  std::optional<int> end_of_text;  ///< absent: known by the tokenizer or the vocabulary, of text as bytes and of GPT-2
  std::string tokenizer;           ///< file of the tokenizer that the model was trained with; empty: none is written
  bool force = false;              ///< write into a directory that is not empty
};

/// Writes model.safetensors, config.json and the Python files that the model needs, with a tokenizer also what
/// transformers' AutoTokenizer loads, each complete or not at all. One rank calls this. Throws Error: usage where the
/// end-of-text token is not known or not the tokenizer's, data where the tokenizer is not of the model, checkpoint,
/// output.
void export_model(const ExportOptions& options);

/// The shape of a parameter in model.safetensors: learned scalars in one row or column are a vector.
std::vector<std::uint64_t> exported_shape(const Parameter& parameter);

bool all_finite(std::span<const float> values);
/// Warns of tensors of a file that are not all finite, if there are any. No error: runs that diverge leave such
/// checkpoints, and only the user knows what they are for.
void warn_of_non_finite(const std::string& path, const std::vector<std::string>& tensors);

}  // namespace nanorun
