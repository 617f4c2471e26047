#pragma once
// The deck: typed settings filled from a TOML file and command-line overrides. One row of the key table in
// config_keys.cpp describes each key; the reference of all keys is printed from the same rows.

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

/// Columns that the gates of smear, skip, attention and value embeddings read.
inline constexpr int gate_columns = 12;

enum class ValuePath { none, first, embeddings, gated_embeddings };
enum class RotaryKind { full, half_truncated };
enum class WindowKind { token, tokens_before, block };
enum class Residual { unet, scaled };
enum class Packing { stream, documents };
enum class LossSum { mean, sum };
enum class Orthogonalisation { newton_schulz, polar_express };
enum class Rounding { floor, ceil };
enum class LmHeadChoice { automatic, fp32, bf16, fp8 };
enum class EndOfData { error, wrap };
enum class ChangedData { refuse, accept };
enum class Recompute { none, mlp };
enum class MlpPrecision { working, fp8 };
enum class OnFailure { stop, go_on };
enum class TransportChoice { automatic, peers, nccl };
/// Of what Adam keeps of a tensor.
enum class StateFormat { fp32, bf16 };

struct RunConfig {
  std::string name = "run";
  std::string outputs = "outputs";
  std::int64_t seed = 1;
  int log_every = 10;
  int gpu_every = 10;         ///< steps from one look at the GPUs' power and clocks to the next; 0: never
  bool reproducible = false;  ///< on GPUs too, two runs of a deck give the same bits
};

struct ModelConfig {
  int vocabulary = 50257;
  int width = 768;
  int heads = 6;
  int head_dim = 128;
  int layers = 12;
  int mlp_ratio = 4;
  double norm_eps = 0.0078125;
  ValuePath value_path = ValuePath::embeddings;
  int value_embeddings = 3;
  std::vector<int> layers_without_attention;
  RotaryKind rotary = RotaryKind::half_truncated;
  double rotary_base = 1024;
  std::vector<double> rotary_frequencies;  ///< of the pairs that turn, radians per position; empty: by rotary_base
  double attention_scale = 0;              ///< 0: 1 / sqrt(head_dim)
  double softcap = 15;
  kernels::SoftcapKind softcap_kind = kernels::SoftcapKind::tanh;
  double softcap_shift = 0, softcap_width = 1;  ///< of the sigmoid
  double init_scale = 1;                        ///< uniform bound of weight matrices: init_scale / sqrt(fan_in)
  bool zero_outputs = true;                     ///< W_o, W2 and W_head start at zero
  bool zero_attention_outputs = true;           ///< of these, W_o
  double init_embedding = 1;                    ///< standard deviation of the token embedding, and of a tied head
  double init_value_embedding = 1;              ///< standard deviation of the value embeddings

  bool tied_head = false;                        ///< head and embedding start alike, see train.untie_step
  Residual residual = Residual::unet;            ///< how blocks join the residual stream
  std::vector<int> value_layers;                 ///< of ValuePath::gated_embeddings, a table each
  std::vector<int> value_layers_gated_by_input;  ///< of these, whose gate does not read the embedding
  bool smear = false;
  int bigram_rows = 0;                 ///< of the table of hashed pairs of tokens; 0: none
  int bigram_columns = 0;              ///< of both tables, the first of the stream; 0: as many as the stream has
  int bigram_sign_rows = 0;            ///< of its table of signs; 0: none
  int skip_from = -1;                  ///< the layer whose output the one skip carries; -1: no skip
  int skip_to = -1;                    ///< the layer, one without attention, that it enters
  bool skip_gate = false;              ///< a gate per token on it, where no coefficient net has one
  int attention_source = -1;           ///< later layers attend from this layer's output; -1: each from its own input
  std::vector<int> paired_layers;      ///< whose heads attend in pairs
  std::vector<int> xsa_layers;         ///< whose heads lose what lies along their token's own value
  std::vector<int> gated_layers;       ///< whose heads have gates
  std::vector<int> key_offset_layers;  ///< whose keys take their still dims from the token before
  std::vector<int> composed_layers;    ///< whose heads are composed dynamically
  int composition_window = 112;        ///< keys
  bool gate_nets = false;              ///< coefficients of gates per token, from two coefficient nets
  int gate_net_layer = 4;       ///< the second net reads the input of this layer and serves it and the later ones
  int coefficient_width = 64;   ///< hidden units of a coefficient net
  bool mudd = false;            ///< the last layer, and what follows it, mix the streams of earlier layers
  double mudd_scale = 0.1;      ///< factor on the outputs of its nets
  double mudd_value_scale = 1;  ///< further factor on the streams that the last layer's values take up
  double mudd_backout = 0.5;    ///< start of the part of the stream at attention_source that is subtracted at the end
  bool yarn = false;            ///< rescale rotary frequencies where a stage changes the long window
};

struct LmHeadConfig {
  LmHeadChoice precision = LmHeadChoice::automatic;
  double scale_x = 2;
  double scale_w = 512;
  double scale_g = 524288;
  int scale_g_length = 49152;  ///< tokens of a sequence that scale_g was chosen for
};

/// [[stage]]: a part of the schedule. Without stages, [train] and [window] hold for all steps.
struct StageConfig {
  double share = 0;    ///< of the scheduled steps; the shares add up to 1. 0, for the last stage alone: the extension
  int length = 49152;  ///< tokens of a sequence
  int longest_document = 0;  ///< tokens of a document beyond which it is cut; 0: none is
  int short_window = 128;    ///< tokens
  int long_window = 1792;    ///< tokens
  double lr_factor = 1;
  std::vector<double> targets{1};   ///< weights of the next token, the one after it, ... at the stage's first step
  std::vector<double> targets_end;  ///< behind its last step; empty: the same
  double prefix = 0;                ///< weight of the prefix target, likewise
  double prefix_end = -1;           ///< -1: the same
};

/// [[group]]: tensors that Adam or Muon updates with a rate of their own. The first group that names a tensor has it.
struct GroupConfig {
  std::vector<std::string> tensors;  ///< names of the parameter table; * stands for any characters
  double lr = 0;
  double beta1 = 0.8, beta2 = 0.95;  ///< Adam's
  double decay = 0;                  ///< cautious: w -= lr^2 decay w
  /// Adam's: bf16 rounds weights after each update, on GPUs without a master, or moments
  StateFormat master = StateFormat::fp32, moments = StateFormat::fp32;
};

struct WindowConfig {
  WindowKind kind = WindowKind::block;
  std::string layers = "L";  ///< one letter for all layers, or one per layer: L long, S short (half the blocks)
  double first = 0;          ///< tokens at step 0, before rounding
  double last = 1728;        ///< tokens at the last step, before rounding
  int quantum = 128;         ///< the window is a multiple of this, at least one
  Rounding rounding = Rounding::ceil;
};

struct TrainConfig {
  int steps = 1770;
  int sequences = 8;                      ///< per step, over all ranks
  int length = 49152;                     ///< tokens of a sequence
  Recompute recompute = Recompute::none;  ///< mlp: form the hidden units again in the backward pass, to save memory
  MlpPrecision mlp_precision = MlpPrecision::working;  ///< of the operands of the MLP's forward products
  double cooldown = 0.4;         ///< last fraction of the steps, in which the learning rates fall linearly
  double final_lr_factor = 0.1;  ///< reached at the last scheduled step
  int extension_steps = 0;       ///< of `steps`, the last, which the schedule leaves out; at the final rates
  LossSum loss = LossSum::mean;  ///< over the tokens of a sequence: what is differentiated
  /// model.tied_head: head and embedding are one parameter up to the update at this step; -1: they never are
  int untie_step = 0;
};

struct ValidationConfig {
  int every = 125;  ///< steps; 0: only after the last step
  std::int64_t tokens = 10485760;
  int length = 262144;
  int last_long_window = 0;  ///< tokens, of the last validation; 0: the last stage's
};

struct DataConfig {
  std::vector<std::string> train;  ///< token shards, in stream order; glob patterns expand sorted
  std::vector<std::string> validation;
  EndOfData end = EndOfData::error;
  ChangedData changed = ChangedData::refuse;  ///< where training shards are not those of the checkpoint
  bool allow_other_tokenizer = false;         ///< shards and checkpoints may say that other tokenizers made them
  int prefetch_steps = 4;
  Packing packing = Packing::stream;  ///< documents: each sequence begins with a document, long ones are cut
  std::string prefix_table;           ///< file of the tokens' prefixes; empty: none
};

struct OptimizerConfig {
  double muon_lr = 0.05;
  double muon_momentum_first = 0.85;
  double muon_momentum_last = 0.95;
  int muon_momentum_steps = 300;
  int muon_momentum_cooldown = 0;  ///< last steps, in which the momentum falls linearly to the first; 0: none
  Orthogonalisation orthogonalisation = Orthogonalisation::newton_schulz;
  int muon_block_heads = 0;       ///< heads of W_q and W_k that are orthogonalised together; 0: all
  double normuon_beta = 0;        ///< decay of NorMuon's second moment; 0: none is kept
  double muon_decay = 0;          ///< cautious: w -= lr muon_lr decay w
  bool muon_truncates = false;    ///< the bf16 weights that GEMMs read are truncated, not rounded
  bool adam_epsilon_hat = false;  ///< adam_eps is added before the second moment's bias is corrected
  int adam_period = 1;            ///< Adam updates after so many steps, with the sum of their gradients
  double adam_beta1 = 0.8;
  double adam_beta2 = 0.95;
  double adam_eps = 1e-10;
  StateFormat adam_master = StateFormat::fp32, adam_moments = StateFormat::fp32;  ///< as GroupConfig::master, moments
  double lr_embedding = 0.6;
  double lr_head = 0.008;
  double lr_scalar = 0.04;
  double lr_skip = 0.04;
};

struct CheckpointConfig {
  int every = 0;                           ///< steps; 0: only when a run stops early
  int keep = 2;                            ///< newest checkpoints kept
  int milestone_every = 0;                 ///< steps whose checkpoints are kept for good; 0: none
  bool at_end = true;                      ///< write one after the last step
  std::string restart = "auto";            ///< auto, none, or a checkpoint file
  std::string weights;                     ///< checkpoint whose weights a new run begins with; empty: initial ones
  OnFailure on_failure = OnFailure::stop;  ///< when a checkpoint cannot be written
};

struct StopConfig {
  double walltime_seconds = 0;  ///< from program start; 0: no limit
  std::string file;             ///< stop when it appears; empty: <outputs>/<name>/stop
  int step = 0;                 ///< stop before this step as if interrupted; 0: never
};

struct TraceConfig {
  bool enabled = true;
  std::vector<int> json_steps;  ///< steps that go into trace.json
  int flush_every = 50;         ///< steps between writes of trace.h5
};

struct CommConfig {
  double timeout_seconds = 300;                               ///< a collective that takes longer ends the job
  kernels::WireFormat gradients = kernels::WireFormat::fp32;  ///< in which gradients travel to the rank that sums them
  double gradient_scale = 65536;                              ///< e5m2: factor on the gradients of a rank's sequences
  TransportChoice transport = TransportChoice::automatic;     ///< between devices
};

struct Config {
  RunConfig run;
  ModelConfig model;
  LmHeadConfig head;
  WindowConfig window;
  TrainConfig train;
  std::vector<StageConfig> stage;
  ValidationConfig validation;
  DataConfig data;
  OptimizerConfig optimizer;
  std::vector<GroupConfig> group;
  CheckpointConfig checkpoint;
  StopConfig stop;
  TraceConfig trace;
  CommConfig comm;

  /// Where each key that is not left at its default was set: "FILE:LINE" or "override SECTION.KEY=VALUE"; and where
  /// each
  /// [[stage]] and [[group]] begins, as "stage.0". For messages.
  std::map<std::string, std::string> places;
};

/// Fills a Config from TOML text and overrides of the form "section.key=value" (value in TOML syntax; a bare word is
/// a string; a list key takes a bare value as a list of one), "stage.0.key=value" for the first [[stage]]. Unknown
/// keys, wrong types and impossible values throw Error(usage) whose message has a line for each, in the order of file
/// and overrides, that names key, file and line (or the override) and the nearest known key. `file` is used in messages
/// only.
Config parse_deck(const std::string& text, const std::string& file, const std::vector<std::string>& overrides);

/// Checks that involve several keys (for example width = heads * head_dim) and the rank count. Throws Error(usage)
/// whose message has a line for each rule that is broken, which begins with the place of the first key at fault that
/// the deck or an override set.
void check_config(const Config& config, int ranks);

/// The rules of check_config() that concern the model alone.
void check_model(const Config& config);

/// The resolved deck as TOML: every key with its value and help; parses back to the same Config.
std::string to_toml(const Config& config);

/// What another value of a key means to a training that has begun.
enum class Role {
  trains,      ///< the numbers change from here on
  identifies,  ///< it is a different training
  operates,    ///< the numbers stay: names, files, time, transport
};

/// A key whose value differs from an earlier deck's.
struct KeyChange {
  Role role;
  std::string key;   ///< or a row that only one of the decks has: "stage.2"
  std::string text;  ///< "train.steps: 100 -> 200"
};

/// Keys whose values differ between the resolved deck of an earlier run and this one, in the order of the key table;
/// the n-th [[stage]] or [[group]] is compared with the n-th. Throws Error(usage) where the earlier deck cannot be
/// read, as an older program's may be; `file` names it then.
std::vector<KeyChange> deck_changes(const std::string& earlier_deck, const Config& now,
                                    const std::string& file = "the earlier deck");

/// Lines for the log on changes since a checkpoint: one of the keys that train, and one of warning of those that
/// identify. None on keys that operate.
std::vector<std::string> change_lines(const std::vector<KeyChange>& changes);

/// Reference of all keys as Markdown.
std::string key_reference();

/// The step behind a stage's share of the scheduled steps: share by share, rounded to the nearest.
long scheduled_end(const Config& config, int stage);

/// Columns of the head: the vocabulary padded to a multiple of 128.
int padded_vocabulary(const ModelConfig& model);

/// Pairs of dims of a head that rotary embeddings turn: the first ones.
int turning_pairs(const ModelConfig& model);

/// Format of the head's GEMMs in training: head.precision, with "auto" as this build takes it.
kernels::LmHeadPrecision head_precision(const Config& config);

}  // namespace nanorun
