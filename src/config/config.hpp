#pragma once
// The deck: typed settings filled from a TOML file and command-line overrides. A member of a section's struct is the
// key of that name. What it means stands once, in its row of the key table (config_keys_model.cpp,
// config_keys_training.cpp, config_keys_run.cpp), from which docs/keys.md and `nanorun keys` are printed.

#include <cstdint>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/ops.hpp"

namespace nanorun {

/// Whether training computes in fp32, as in the CPU build; on CUDA devices it computes in bf16, or fp8, with sums in
/// fp32.
inline constexpr bool computes_in_fp32 = std::is_same_v<Real, float>;

/// Decks are some thousand bytes; the time to parse one grows with the square of the number of its tables.
inline constexpr std::size_t max_deck_bytes = std::size_t{1} << 20;

enum class ValuePath { none, first, embeddings, gated_embeddings };
enum class RotaryKind { full, half_truncated };
enum class WindowKind { token, tokens_before, block };
enum class Residual { unet, scaled, plain, before };
enum class Packing { stream, documents, rows };
enum class LossSum { mean, sum };
enum class Orthogonalisation { newton_schulz, polar_express, six_maps };
/// The rule that updates the matrices of the blocks.
enum class MatrixRule { muon, adam };
enum class DecayKind { cautious, plain };
enum class CooldownShape { linear, cosine };
enum class Rounding { floor, ceil };
enum class LmHeadChoice { automatic, fp32, bf16, fp8 };
enum class EndOfData { error, wrap };
enum class ChangedData { refuse, accept };
/// What the backward pass forms again: nothing, the hidden units, or all that attention and the MLP of a block save.
enum class Recompute { none, mlp, block };
enum class MlpPrecision { working, fp8 };
/// Formats of the operands of products under [fp8.<product>].
enum class Fp8Forward { working, e4m3 };
enum class Fp8Gradient { working, e4m3, e5m2 };
/// What a scale follows: the tensor itself, those of the step before, or nothing.
enum class Fp8Scales { exact, delayed, fixed };
enum class Fp8WeightScales { exact, delayed };
enum class OnFailure { stop, go_on };
enum class TransportChoice { automatic, peers, nccl };
/// What trace.h5 keeps of the ranks.
enum class TraceRanks { automatic, all, quantiles };
/// Format of weights and moments that an optimizer keeps.
enum class StateFormat { fp32, bf16 };
/// Those of the tensors of a [[group]]: as [optimizer] says, or its own.
enum class GroupFormat { automatic, fp32, bf16 };
/// The rule of the tensors of a [[group]]: as [optimizer] says, or Muon.
enum class GroupRule { automatic, muon };

struct RunConfig {
  std::string name = "run";
  std::string outputs = "outputs";
  std::int64_t seed = 1;
  int log_every = 10;
  int gpu_every = 10;
  bool reproducible = false;
};

struct ModelConfig {
  int vocabulary = 50257;
  int width = 768;
  int heads = 6;
  int head_dim = 128;
  std::vector<int> qk_dims;
  int layers = 12;
  int mlp_ratio = 4;
  double norm_eps = 0.0078125;
  ValuePath value_path = ValuePath::embeddings;
  int value_embeddings = 3;
  std::vector<int> layers_without_attention;
  RotaryKind rotary = RotaryKind::half_truncated;
  double rotary_base = 1024;
  std::vector<double> rotary_frequencies;
  double attention_scale = 0;
  double attention_scale_narrow = 0;
  bool qk_norm = true;
  double softcap = 15;
  kernels::SoftcapKind softcap_kind = kernels::SoftcapKind::tanh;
  double softcap_shift = 0, softcap_width = 1;
  double init_scale = 1;
  double init_scale_mlp = 0;
  double init_std = 0;
  double init_std_outputs = 0;
  bool zero_outputs = true;
  bool zero_attention_outputs = true;
  double init_embedding = 1;
  double init_value_embedding = 1;
  double init_embedding2 = 1;
  double init_residual = 1.05;

  bool tied_head = false;
  Residual residual = Residual::unet;
  bool embedding_norm = true;
  bool norm_gains = false;
  bool biases = false;
  bool head_bias = false;
  std::vector<int> value_layers;
  std::vector<int> value_layers_gated_by_input;
  std::vector<int> value_tables;
  int gate_columns = 12;
  bool smear = false;
  bool second_embedding = false;
  int bigram_rows = 0;
  int bigram_columns = 0;
  int bigram_sign_rows = 0;
  std::vector<int> skip_from, skip_to;
  bool skip_gate = false;
  int backout_from = -1;
  int attention_source = -1;
  std::vector<int> paired_layers;
  std::vector<int> xsa_layers;
  std::vector<int> gated_layers;
  std::vector<int> key_offset_layers;
  std::vector<int> composed_layers;
  int composition_window = 112;
  bool gate_nets = false;
  int gate_net_layer = 4;
  int coefficient_width = 64;
  bool mudd = false;
  double mudd_scale = 0.1;
  double mudd_value_scale = 1;
  double mudd_backout = 0.5;
  bool yarn = false;
  int yarn_last_window = 0;
};

struct LmHeadConfig {
  LmHeadChoice precision = LmHeadChoice::automatic;
  double scale_x = 2;
  double scale_w = 512;
  double scale_g = 524288;
  int scale_g_length = 49152;
};

/// [[stage]]: a part of the schedule. Without stages, [train] and [window] hold for all steps.
struct StageConfig {
  double share = 0;
  int length = 49152;
  int longest_document = 0;
  int short_window = 128;
  int long_window = 1792;
  double lr_factor = 1;
  std::vector<double> targets{1};
  std::vector<double> targets_end;
  double prefix = 0;
  double prefix_end = -1;
  int candidates = 0;
  int attention_document = 0;
};

/// [[group]]: tensors that Adam or Muon updates with a rate of their own.
struct GroupConfig {
  std::vector<std::string> tensors;
  double lr = 0;
  double beta1 = 0.8, beta2 = 0.95;
  double decay = 0;
  GroupFormat master = GroupFormat::automatic, moments = GroupFormat::automatic;
  GroupRule rule = GroupRule::automatic;
  int period = 0;
  int period_from = 0;
};

/// [[average]]: tensors whose weights are averaged over the last steps (src/optimizer/averages.hpp).
struct AverageConfig {
  std::vector<std::string> tensors;
  int from_last = 0;
  int every = 1;
  double rate = 0;
  double blend = 1;
};

struct WindowConfig {
  WindowKind kind = WindowKind::block;
  std::string layers = "L";
  double first = 0;
  double last = 1728;
  int quantum = 128;
  Rounding rounding = Rounding::ceil;
};

struct TrainConfig {
  int steps = 1770;
  int sequences = 8;
  int length = 49152;
  Recompute recompute = Recompute::none;
  std::vector<int> recompute_layers;
  MlpPrecision mlp_precision = MlpPrecision::working;
  int warmup = 0;
  double cooldown = 0.4;
  CooldownShape cooldown_shape = CooldownShape::linear;
  double final_lr_factor = 0.1;
  int extension_steps = 0;
  LossSum loss = LossSum::mean;
  int untie_step = 0;
};

/// [fp8.<product>]: operands in 8 bits (src/model/fp8_scales.hpp).
struct Fp8Config {
  Fp8Forward forward = Fp8Forward::working;
  Fp8Gradient gradient = Fp8Gradient::working;
  Fp8Scales scales = Fp8Scales::exact;
  Fp8WeightScales weight_scales = Fp8WeightScales::exact;
  double scale_x = 0;
  double scale_g = 0;
  double margin = 1.25;
};

/// Products that [fp8.<product>] names.
struct Fp8Configs {
  Fp8Config mlp, qkv;
};

struct ValidationConfig {
  int every = 125;
  std::int64_t tokens = 10485760;
  int length = 262144;
  int last_long_window = 0;
};

struct DataConfig {
  std::vector<std::string> train;
  std::vector<std::string> validation;
  EndOfData end = EndOfData::error;
  ChangedData changed = ChangedData::refuse;
  bool allow_other_tokenizer = false;
  int prefetch_steps = 4;
  Packing packing = Packing::stream;
  int row_length = 1024;
  int distinct_sequences = 0;
  std::string prefix_table;
};

struct OptimizerConfig {
  MatrixRule matrix_rule = MatrixRule::muon;
  double clip_norm = 0;
  DecayKind decay_kind = DecayKind::cautious;
  double muon_lr = 0.05;
  double muon_momentum_first = 0.85;
  double muon_momentum_last = 0.95;
  int muon_momentum_steps = 300;
  int muon_momentum_cooldown = 0;
  double slow_momentum = 0;
  double fast_momentum = 0.85;
  double momentum_mix = 1;
  int momentum_mix_from = 0;
  Orthogonalisation orthogonalisation = Orthogonalisation::newton_schulz;
  std::vector<double> orthogonalisation_maps;
  int orthogonalisation_steps = 0;
  int muon_block_heads = 0;
  double normuon_beta = 0;
  double muon_decay = 0;
  bool muon_truncates = false;
  bool adam_epsilon_hat = false;
  int adam_period = 1;
  double adam_beta1 = 0.8;
  double adam_beta2 = 0.95;
  double adam_eps = 1e-10;
  StateFormat adam_master = StateFormat::fp32, adam_moments = StateFormat::fp32, muon_moments = StateFormat::fp32;
  StateFormat matrix_gradients = StateFormat::fp32;
  double lr_matrix = 0.0006;
  double lr_embedding = 0.6;
  double lr_head = 0.008;
  double lr_scalar = 0.04;
  double lr_skip = 0.04;
  int outer_every = 0;
  double outer_lr = 0.7;
  double outer_momentum = 0.5;
};

struct CheckpointConfig {
  int every = 0;
  int keep = 2;
  int milestone_every = 0;
  bool at_end = true;
  std::string restart = "auto";
  std::string weights;
  OnFailure on_failure = OnFailure::stop;
  bool background = false;
  std::string mpi_hints;
};

struct StopConfig {
  double walltime_seconds = 0;
  std::string file;
  int step = 0;
};

struct TraceConfig {
  bool enabled = true;
  std::vector<int> json_steps;
  int flush_every = 50;
  TraceRanks ranks = TraceRanks::automatic;
};

struct ProfileConfig {
  int first = 0, last = -1;
};

struct CommConfig {
  double timeout_seconds = 300;
  kernels::WireFormat gradients = kernels::WireFormat::fp32;
  double gradient_scale = 65536;
  TransportChoice transport = TransportChoice::automatic;
  int ranks_per_node = 0;
};

struct Config {
  RunConfig run;
  ModelConfig model;
  LmHeadConfig head;
  WindowConfig window;
  TrainConfig train;
  Fp8Configs fp8;
  std::vector<StageConfig> stage;
  ValidationConfig validation;
  DataConfig data;
  OptimizerConfig optimizer;
  std::vector<GroupConfig> group;
  std::vector<AverageConfig> average;
  CheckpointConfig checkpoint;
  StopConfig stop;
  TraceConfig trace;
  ProfileConfig profile;
  CommConfig comm;

  /// Places for messages, "FILE:LINE" or "override SECTION.KEY=VALUE": where a key was set, unless it has its default,
  /// and by "stage.N", "group.N" or "average.N" where this section begins.
  std::map<std::string, std::string> set_at;
};

/// Fills a Config from TOML text and overrides of the form "section.key=value" (value in TOML syntax; a bare word is a
/// string; a list key takes a bare value as a list of one), "stage.0.key=value" for the first [[stage]]. Throws
/// Error(usage) for unknown keys, wrong types and impossible values. The message has a line for each, in the order of
/// the file and the overrides, with the key, its place and the nearest known key. `file` names the text in messages.
Config parse_deck(const std::string& text, const std::string& file, const std::vector<std::string>& overrides);

/// Checks that involve several keys (for example width = heads * head_dim) and the rank count. Throws Error(usage). The
/// message has a line for each broken rule, which begins with the place of the first key at fault that the deck or an
/// override has set.
void check_config(const Config& config, int ranks);

/// The rules of check_config() that concern the model alone.
void check_model(const Config& config);

/// The resolved deck as TOML: every key with its value and help; parses back to the same Config.
std::string to_toml(const Config& config);

/// Whether a text is just what to_toml() makes of a deck, with nothing of a user's in it. False for the decks of
/// programs with other keys or other help.
bool is_resolved_deck(const std::string& text);

/// What it means for a training that has begun if a key gets another value.
enum class Role {
  trains,      ///< the numbers change from here on
  identifies,  ///< it becomes a different training
  operates,    ///< the numbers stay: names, files, time, transport
};

/// A key whose value differs from an earlier deck's.
struct KeyChange {
  Role role;
  std::string key;   ///< or a row that only one of the decks has: "stage.2"
  std::string text;  ///< "train.steps: 100 -> 200"
};

/// Keys whose values differ between the resolved deck of an earlier run and this one, in the order of the key table;
/// the n-th [[stage]], [[group]] or [[average]] is compared with the n-th. Throws Error(usage), naming `file`, if the
/// earlier deck cannot be read, which may happen with a deck of an older program.
std::vector<KeyChange> deck_changes(const std::string& earlier_deck, const Config& now,
                                    const std::string& file = "the earlier deck");

/// Lines for the log on keys that have changed since a checkpoint: one line for all keys that train, and a warning for
/// all that identify. None for keys that operate.
std::vector<std::string> change_lines(const std::vector<KeyChange>& changes);

/// Reference of all keys as Markdown.
std::string key_reference();

/// The step at which a stage's share of the scheduled steps ends: the sum of the shares up to it, rounded to the
/// nearest step.
long scheduled_end(const Config& config, int stage);

/// Columns of the LM head: the vocabulary padded to a multiple of 128.
int padded_vocabulary(const ModelConfig& model);

/// Width of Q and K in the heads of a layer; head_dim where model.qk_dims does not say otherwise.
int qk_dim(const ModelConfig& model, int layer);

/// The widest of them.
int widest_qk_dim(const ModelConfig& model);

/// Number of pairs of dims that the rotary embedding turns where Q and K are widest: the first ones. Narrower ones have
/// the first of these pairs, with the same frequencies.
int turning_pairs(const ModelConfig& model);

/// Format of the LM head's GEMMs in training: head.precision, with "auto" as this build takes it.
kernels::LmHeadPrecision lm_head_precision(const Config& config);

/// The deck with what it has in fp8 in the build's working precision.
Config without_fp8(Config config);

/// The deck as the device in use computes it: without_fp8() where the device has no such products.
Config computed_config(const Config& config);

}  // namespace nanorun
