#pragma once
// A checkpoint's model as a directory for PyTorch and Hugging Face's transformers, and back.

#include <optional>
#include <string>

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

struct ImportOptions {
  std::string directory, checkpoint;
  bool force = false;  ///< replace a file that exists
};

/// Writes what export_model() has left, or a program that has trained it further, into a checkpoint of step 0, whose
/// optimizer's state is that of a new run. One rank calls this. Throws Error: data for the directory, output where the
/// checkpoint exists, checkpoint where it cannot be written. `provenance` goes into the file, as into a run's.
void import_model(const ImportOptions& options, const std::string& provenance);

}  // namespace nanorun
