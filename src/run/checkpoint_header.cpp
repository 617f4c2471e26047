#include "src/run/checkpoint_header.hpp"

#include <fmt/format.h>

#include <span>

#include "src/base/build.hpp"

namespace nanorun {

namespace {

constexpr std::uint64_t max_step = 1u << 31;

std::span<const std::uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

std::uint64_t header_checksum(const CheckpointHeader& header) {
  const Progress& p = header.progress;
  std::string text =
      fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{:.17g}\n{}\n{}\n", header.model, header.deck, p.step, p.cursor.shard,
                  p.cursor.offset, p.cursor.epoch, p.train_seconds, p.tokens, header.tensors);
  if (header.version > 1) text += fmt::format("{:.17g}\n{}\n", p.train_loss, header.shards);
  if (header.version > 2) text += fmt::format("{}\n{:016x}\n", header.tokenizer.name, header.tokenizer.checksum);
  if (header.version > 3) text += fmt::format("{}\n", static_cast<int>(p.gradients_wait));
  for (const double maximum : p.mlp_maxima) text += fmt::format("{:.17g}\n", maximum);
  for (const double maximum : p.fp8_maxima) text += fmt::format("{:.17g}\n", maximum);
  return h5::checksum(text);
}

/// Text of any length, which an attribute cannot hold.
void write_text_dataset(h5::File& file, const char* dataset, const std::string& text) {
  file.create_dataset<std::uint8_t>(dataset, {text.size()});
  file.write<std::uint8_t>(dataset, {0}, {text.size()}, bytes_of(text));
}

std::string read_text_dataset(const h5::File& file, const char* dataset) {
  const h5::Extent shape = file.shape(dataset);
  if (shape.size() != 1) throw checkpoint_damage(fmt::format("{}: {}: has an impossible shape", file.path(), dataset));
  std::vector<std::uint8_t> bytes(shape[0]);
  file.read<std::uint8_t>(dataset, {0}, {bytes.size()}, bytes);
  return {bytes.begin(), bytes.end()};
}

/// What operands in 8 bits are scaled by, a column for each layer.
struct MaximaDataset {
  const char* name;
  std::uint64_t rows;
};
constexpr MaximaDataset mlp_maxima{"/mlp_maxima", 2}, fp8_maxima{"/fp8_maxima", 10};

/// Absent where there are none.
void write_maxima(h5::File& file, const MaximaDataset& dataset, const std::vector<double>& maxima) {
  if (maxima.empty()) return;
  const h5::Extent shape = {dataset.rows, maxima.size() / dataset.rows};
  file.create_dataset<double>(dataset.name, shape);
  file.write<double>(dataset.name, {0, 0}, shape, maxima);
}

std::vector<double> read_maxima(const h5::File& file, const MaximaDataset& dataset) {
  if (!file.exists(dataset.name)) return {};
  const h5::Extent shape = file.shape(dataset.name);
  constexpr std::uint64_t max_layers = 65536;
  if (shape.size() != 2 || shape[0] != dataset.rows || shape[1] == 0 || shape[1] > max_layers)
    throw checkpoint_damage(fmt::format("{}: {}: has an impossible shape", file.path(), dataset.name));
  std::vector<double> maxima(dataset.rows * shape[1]);
  file.read<double>(dataset.name, {0, 0}, shape, maxima);
  return maxima;
}

}  // namespace

Error checkpoint_damage(const std::string& message) {
  return {ExitCode::checkpoint, message, Scope::this_rank, Cause::damage};
}

void write_header(h5::File& file, const CheckpointHeader& header) {
  const Progress& p = header.progress;
  file.write_attribute("/", "format", std::string(checkpoint_format));
  file.write_attribute("/", "format_version", header.version);
  file.write_attribute("/", "version", build().version);
  file.write_attribute("/", "commit", build().commit);
  if (!header.provenance.empty()) file.write_attribute("/", "provenance", header.provenance);
  if (!header.earlier_decks.empty()) file.write_attribute("/", "earlier_decks", header.earlier_decks);
  file.write_attribute("/", "model", header.model);
  file.write_attribute("/", "step", static_cast<std::uint64_t>(p.step));
  file.write_attribute("/", "cursor_shard", p.cursor.shard);
  file.write_attribute("/", "cursor_offset", p.cursor.offset);
  file.write_attribute("/", "cursor_epoch", p.cursor.epoch);
  file.write_attribute("/", "train_seconds", p.train_seconds);
  file.write_attribute("/", "tokens", p.tokens);
  file.write_attribute("/", "train_loss", p.train_loss);
  file.write_attribute("/", "tensors", header.tensors);
  file.write_attribute("/", "tokenizer", header.tokenizer.name);
  file.write_attribute("/", "tokenizer_checksum", header.tokenizer.checksum);
  file.write_attribute("/", "adam_gradients_wait", std::uint64_t{p.gradients_wait});
  if (header.tokenizer.vocabulary > 0) file.write_attribute("/", "vocabulary", header.tokenizer.vocabulary);
  if (header.tokenizer.end_of_text) file.write_attribute("/", "end_of_text", *header.tokenizer.end_of_text);
  file.write_attribute("/", "checksum", header_checksum(header));
  write_text_dataset(file, "/deck", header.deck);
  write_text_dataset(file, "/shards", header.shards);
  write_maxima(file, mlp_maxima, p.mlp_maxima);
  write_maxima(file, fp8_maxima, p.fp8_maxima);
}

CheckpointHeader read_header(const h5::File& file) {
  if (file.format() != checkpoint_format) throw checkpoint_damage(file.path() + ": is not a nanorun checkpoint");
  const auto integer = [&](const char* name) { return file.read_integer_attribute("/", name); };
  CheckpointHeader header;
  header.version = integer("format_version");
  if (header.version < 1 || header.version > checkpoint_version) {
    throw Error(ExitCode::checkpoint, fmt::format("{}: has checkpoint format version {}; this program reads versions 1 "
                                                  "to {}",
                                                  file.path(), header.version, checkpoint_version));
  }
  header.model = file.read_text_attribute("/", "model");
  header.deck = header.version > 1 ? read_text_dataset(file, "/deck") : file.read_text_attribute("/", "deck");
  if (header.version > 1) header.shards = read_text_dataset(file, "/shards");
  if (header.version > 2)
    header.tokenizer = {file.read_text_attribute("/", "tokenizer"), integer("tokenizer_checksum")};
  if (file.has_attribute("/", "vocabulary")) header.tokenizer.vocabulary = integer("vocabulary");
  if (file.has_attribute("/", "end_of_text")) header.tokenizer.end_of_text = integer("end_of_text");
  if (file.has_attribute("/", "earlier_decks")) header.earlier_decks = file.read_text_attribute("/", "earlier_decks");
  const std::uint64_t step = integer("step");
  header.progress = {static_cast<long>(step),
                     {integer("cursor_shard"), integer("cursor_offset"), integer("cursor_epoch")},
                     file.read_real_attribute("/", "train_seconds"),
                     integer("tokens")};
  if (header.version > 1) header.progress.train_loss = file.read_real_attribute("/", "train_loss");
  if (header.version > 3) header.progress.gradients_wait = integer("adam_gradients_wait") != 0;
  header.progress.mlp_maxima = read_maxima(file, mlp_maxima);
  header.progress.fp8_maxima = read_maxima(file, fp8_maxima);
  header.tensors = integer("tensors");
  if (integer("checksum") != header_checksum(header))
    throw checkpoint_damage(file.path() + ": the checksum of the root attributes does not match; the file is damaged");
  if (step > max_step)
    throw checkpoint_damage(fmt::format("{}: impossible step {}; the file is damaged", file.path(), step));
  return header;
}

}  // namespace nanorun
