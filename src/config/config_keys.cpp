#include "src/config/config_keys.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "src/base/text.hpp"

namespace nanorun {

namespace {

// Upper bounds keep multiplied sizes within their types: steps * sequences * length within 64 bits, and
// model.width * model.mlp_ratio within 32. Keys in seconds stay within the range of clocks.
constexpr int max_width = 16384;
constexpr int max_layers = 1024;
constexpr int max_steps = 10'000'000;
constexpr int max_bigram_rows = 1 << 24;
constexpr double max_seconds = 1e8;

using enum Role;

Check any() { return {}; }
Check at_least(double min) {
  return {.allowed = fmt::format(">= {}", min), .number = [=](double x) { return x >= min; }};
}
Check above(double bound) {
  return {.allowed = fmt::format("> {}", bound), .number = [=](double x) { return x > bound; }};
}
Check above(double bound, double max) {
  return {.allowed = fmt::format("> {} and <= {}", bound, max),
          .number = [=](double x) { return x > bound && x <= max; }};
}
Check between(double min, double max) {
  return {.allowed = fmt::format("from {} to {}", min, max), .number = [=](double x) { return x >= min && x <= max; }};
}
Check minus_one_or_at_least(double min) {
  return {.allowed = fmt::format("-1 or >= {}", min), .number = [=](double x) { return x == -1 || x >= min; }};
}
Check zero_or_between(double min, double max) {
  return {.allowed = fmt::format("0, or from {} to {}", min, max),
          .number = [=](double x) { return x == 0 || (x >= min && x <= max); }};
}
Check fraction_below_one() {
  return {.allowed = ">= 0 and < 1", .number = [](double x) { return x >= 0 && x < 1; }};
}
Check multiple_of(int unit, int max) {
  return {.allowed = fmt::format("a multiple of {} from {} to {}", unit, unit, max),
          .number = [=](double x) { return x > 0 && x <= max && static_cast<std::int64_t>(x) % unit == 0; }};
}
bool is_path(const std::string& s) { return !s.empty() && name_fault(s).empty(); }
Check path() {
  return {.allowed = "not empty, without control or invisible characters, not beginning with ~ or $", .text = is_path};
}
Check path_or_empty() {
  return {.allowed = "empty, or a file: " + path().allowed,
          .text = [](const std::string& s) { return s.empty() || is_path(s); }};
}
Check directory_name() {
  return {.allowed = "naming one directory: not empty, without '/', control or invisible characters, not '.' or '..'",
          .text = [](const std::string& s) {
            return !s.empty() && s != "." && s != ".." && s.find('/') == std::string::npos && !hidden_character(s);
          }};
}
/// Another spelling of a word is not taken for a file.
Check auto_none_or_path() {
  return {.allowed = "\"auto\", \"none\" or a file: " + path().allowed, .text = [](const std::string& s) {
            std::string small = s;
            for (char& c : small) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
            return is_path(s) && (s == small || (small != "auto" && small != "none"));
          }};
}
Check tensor_names() {
  return {.allowed = "not empty, of letters, digits, '.', '_' and *", .text = [](const std::string& s) {
            constexpr const char* known = "abcdefghijklmnopqrstuvwxyz0123456789._*";
            return !s.empty() && s.find_first_not_of(known) == std::string::npos;
          }};
}
Check letters_of_layers() {
  return {.allowed = "of letters L and S",
          .text = [](const std::string& s) { return !s.empty() && s.find_first_not_of("LS") == std::string::npos; }};
}

/// Section, name and member from one spelling, so that they cannot disagree.
#define NANORUN_KEY(section, name) \
#section, #name, [](Config & config, std::size_t) -> Field { return &config.section.name; }
/// The same of a section that has rows.
#define NANORUN_ROW_KEY(section, name) \
#section, #name, [](Config & config, std::size_t row) -> Field { return &config.section.at(row).name; }

std::vector<Key> run_keys() {
  return {
      {NANORUN_KEY(run, name), operates, directory_name(), "name of the run and of its directory in run.outputs"},
      {NANORUN_KEY(run, outputs), operates, path(), "directory that holds those of the runs"},
      {NANORUN_KEY(run, seed), identifies, at_least(0), "seed of the initial weights"},
      {NANORUN_KEY(run, log_every), operates, between(1, max_steps), "steps between lines of the log"},
      {NANORUN_KEY(run, gpu_every), operates, between(0, max_steps),
       "steps from one look at power, clock and throttle reasons of the GPUs to the next; 0: never"},
      {NANORUN_KEY(run, reproducible), trains, any(),
       "on GPUs: the same deck, build, model of GPU and rank count give the same bits, also across a restart; costs 1 "
       "to 1.5 % of a step. Always so on CPUs"},
  };
}

std::vector<Key> model_keys() {
  return {
      {NANORUN_KEY(model, vocabulary), trains, between(2, 65536),
       "token ids are below this; the head has as many columns, padded to a multiple of 128"},
      {NANORUN_KEY(model, width), trains, multiple_of(4, max_width),
       "width d of the residual stream; equals heads * head_dim"},
      {NANORUN_KEY(model, heads), trains, between(1, 1024), "attention heads"},
      {NANORUN_KEY(model, head_dim), trains, multiple_of(4, 4096), "width of a head"},
      {NANORUN_KEY(model, layers), trains, between(1, max_layers), "blocks; even with residual = \"unet\""},
      {NANORUN_KEY(model, mlp_ratio), trains, between(1, 64), "hidden width of the MLP in units of model.width"},
      {NANORUN_KEY(model, norm_eps), trains, above(0), "eps of norm(x) = x / sqrt(mean(x^2) + eps)"},
      {NANORUN_KEY(model, value_path), trains, any(),
       "what mixes into the values: none, the values of layer 0 (first), value embeddings, or embeddings with gates"},
      {NANORUN_KEY(model, value_embeddings), trains, between(1, max_layers / 2),
       "value_path = \"embeddings\": tables n of value embeddings, used on the first n layers and again on the last n"},
      {NANORUN_KEY(model, layers_without_attention), trains, between(0, max_layers - 1),
       "layers, counted from 0, that have only the MLP"},
      {NANORUN_KEY(model, rotary), trains, any(), "rotary frequencies: all pairs turn, or only the first half of them"},
      {NANORUN_KEY(model, rotary_base), trains, above(1), "base of the rotary frequencies"},
      {NANORUN_KEY(model, rotary_frequencies), trains, at_least(0),
       "in place of rotary_base: the frequency of each pair that turns, in radians per token; empty: by rotary_base"},
      {NANORUN_KEY(model, attention_scale), trains, at_least(0), "factor on q k^T; 0: 1 / sqrt(head_dim)"},
      {NANORUN_KEY(model, softcap), trains, above(0, kernels::max_softcap), "c of the logits"},
      {NANORUN_KEY(model, softcap_kind), trains, any(),
       "logits c tanh(z / c), or c sigmoid((z + softcap_shift) / softcap_width)"},
      {NANORUN_KEY(model, softcap_shift), trains, any(), "of the sigmoid"},
      {NANORUN_KEY(model, softcap_width), trains, above(0), "of the sigmoid"},
      {NANORUN_KEY(model, init_scale), trains, at_least(0),
       "weight matrices start uniform in +-b, b = init_scale / sqrt(fan_in)"},
      {NANORUN_KEY(model, zero_outputs), trains, any(),
       "output projections and the head start at zero; the head does not where it is tied"},
      {NANORUN_KEY(model, zero_attention_outputs), trains, any(),
       "with zero_outputs: whether attention's output projections do, too"},
      {NANORUN_KEY(model, init_embedding), trains, at_least(0),
       "standard deviation of the initial token embedding, and of a tied head"},
      {NANORUN_KEY(model, init_value_embedding), trains, at_least(0),
       "standard deviation of the initial value embeddings"},
  };
}

/// What joins layers, and what attention does beyond softmax.
std::vector<Key> topology_keys() {
  const Check layer = between(0, max_layers - 1), layer_or_none = between(-1, max_layers - 1);
  return {
      {NANORUN_KEY(model, tied_head), trains, any(),
       "head and embedding start alike and are one parameter up to train.untie_step"},
      {NANORUN_KEY(model, residual), trains, any(),
       "how blocks join the residual stream: unet (skips join the first half to the second), or scaled (learned "
       "factors on stream and branch, and the additions that the keys below name)"},
      {NANORUN_KEY(model, value_layers), trains, layer,
       "value_path = \"gated_embeddings\": layers, ascending, that take up a value embedding of their own"},
      {NANORUN_KEY(model, value_layers_gated_by_input), trains, layer,
       "of these, layers whose gate reads attention's input alone, not the value embedding, too"},
      {NANORUN_KEY(model, smear), trains, any(),
       "add to each token's embedding a gated part of that of the token before"},
      {NANORUN_KEY(model, bigram_rows), trains, zero_or_between(2, max_bigram_rows),
       "rows of a table of hashed pairs of tokens, which all layers with attention add; 0: none"},
      {NANORUN_KEY(model, bigram_columns), trains, between(0, max_width),
       "columns of that table, added to the first of the stream; 0: model.width"},
      {NANORUN_KEY(model, bigram_sign_rows), trains, between(0, 65536),
       "rows of fixed random signs by which those of the pairs are multiplied; 0: none"},
      {NANORUN_KEY(model, skip_from), trains, layer_or_none,
       "layer whose output enters once more before layer skip_to; -1: no skip"},
      {NANORUN_KEY(model, skip_to), trains, layer_or_none, "a later layer, one without attention; -1: no skip"},
      {NANORUN_KEY(model, skip_gate), trains, any(),
       "a gate per token on what the skip carries, which reads x0; without model.gate_nets, whose second net has one"},
      {NANORUN_KEY(model, attention_source), trains, layer_or_none,
       "layers after this one attend from its output; -1: each from its own input"},
      {NANORUN_KEY(model, paired_layers), trains, layer,
       "layers whose heads attend in pairs, as one sequence of twice the length; their window is the short one, in "
       "rows of that sequence"},
      {NANORUN_KEY(model, xsa_layers), trains, layer,
       "layers whose heads lose a learned part of what lies along their token's own value"},
      {NANORUN_KEY(model, gated_layers), trains, layer, "layers with a gate on each head's output"},
      {NANORUN_KEY(model, key_offset_layers), trains, layer,
       "layers whose keys take the dims that rotary leaves still from the token before"},
      {NANORUN_KEY(model, composed_layers), trains, layer,
       "layers whose heads attend once more, with a sum of all heads' probabilities over composition_window"},
      {NANORUN_KEY(model, composition_window), trains, between(1, max_length), "keys of that attention"},
      {NANORUN_KEY(model, gate_nets), trains, any(),
       "gates, and factors of x0, bigrams and skip, per token from two coefficient nets instead of learned scalars"},
      {NANORUN_KEY(model, gate_net_layer), trains, between(1, max_layers - 1),
       "the first net reads x0 and serves the layers before this one; the second reads its input and serves the rest"},
      {NANORUN_KEY(model, coefficient_width), trains, between(1, 4096), "hidden units of a coefficient net"},
      {NANORUN_KEY(model, mudd), trains, any(),
       "the last layer, and what follows it, mix the streams of earlier layers with factors per token (MUDD)"},
      {NANORUN_KEY(model, mudd_scale), trains, above(0), "factor on the outputs of MUDD's nets"},
      {NANORUN_KEY(model, mudd_value_scale), trains, at_least(0),
       "further factor on the streams that MUDD mixes into the values of the last layer"},
      {NANORUN_KEY(model, mudd_backout), trains, any(),
       "start of the part of attention_source's output that MUDD subtracts behind the last layer"},
      {NANORUN_KEY(model, yarn), trains, any(),
       "rescale rotary frequencies and attention_scale where a stage changes the long window (YaRN)"},
  };
}

std::vector<Key> lm_head_keys() {
  return {
      {NANORUN_KEY(head, precision), trains, any(), "format of the head's GEMMs in training; auto: the device's best"},
      {NANORUN_KEY(head, scale_x), trains, above(0), "fp8: factor on the activations before rounding to e4m3"},
      {NANORUN_KEY(head, scale_w), trains, above(0), "fp8: factor on the weights before rounding to e4m3"},
      {NANORUN_KEY(head, scale_g), trains, above(0),
       "fp8: factor on the gradient of the mean loss before rounding to e5m2; belongs to head.scale_g_length"},
      {NANORUN_KEY(head, scale_g_length), operates, multiple_of(kernels::attention_block, max_length),
       "tokens of a sequence that head.scale_g was chosen for"},
  };
}

std::vector<Key> window_keys() {
  return {
      {NANORUN_KEY(window, kind), trains, any(),
       "what a window of w covers: the token and the w - 1 before it (token), the token and the w before it "
       "(tokens_before), or w / 128 blocks of 128 tokens, the token's and those before it (block)"},
      {NANORUN_KEY(window, layers), trains, letters_of_layers(),
       "one letter for all layers or one per layer: L the long window, S the short one, which without stages is half "
       "of it"},
      {NANORUN_KEY(window, first), trains, between(0, max_length), "window in tokens at step 0, before rounding"},
      {NANORUN_KEY(window, last), trains, between(0, max_length), "window in tokens at the last step, before rounding"},
      {NANORUN_KEY(window, quantum), trains, between(1, max_length),
       "tokens; the window is rounded to a multiple of this, at least one; a multiple of 128 for block windows"},
      {NANORUN_KEY(window, rounding), trains, any(), "direction of that rounding"},
  };
}

std::vector<Key> train_keys() {
  return {
      {NANORUN_KEY(train, steps), trains, between(1, max_steps), "optimizer steps"},
      {NANORUN_KEY(train, sequences), identifies, between(1, 65536),
       "sequences of a step over all ranks; a multiple of the rank count"},
      {NANORUN_KEY(train, length), identifies, multiple_of(kernels::attention_block, max_length),
       "tokens of a sequence"},
      {NANORUN_KEY(train, recompute), operates, any(),
       "what the backward pass forms again instead of keeping it: none, or mlp (the hidden units; saves memory)"},
      {NANORUN_KEY(train, mlp_precision), trains, any(),
       "format of the operands of the MLP's forward products in training: working, that of the build, or fp8 (e4m3); "
       "the backward pass and validation take them unrounded"},
      {NANORUN_KEY(train, cooldown), trains, between(0, 1),
       "last fraction of the scheduled steps, where learning rates fall linearly"},
      {NANORUN_KEY(train, final_lr_factor), trains, between(0, 1),
       "factor on the learning rates reached at the last scheduled step"},
      {NANORUN_KEY(train, extension_steps), trains, between(0, max_steps),
       "of train.steps, the last, which the schedule leaves out: they train at the final rates"},
      {NANORUN_KEY(train, loss), trains, any(),
       "what is differentiated of the losses of a sequence's tokens: their mean or their sum"},
      {NANORUN_KEY(train, untie_step), trains, between(-1, max_steps),
       "model.tied_head: head and embedding are one parameter up to the update at this step; -1: they only start "
       "alike"},
  };
}

std::vector<Key> stage_keys() {
  return {
      {NANORUN_ROW_KEY(stage, share), trains, between(0, 1),
       "of the scheduled steps; the shares add up to 1; 0, of the last stage alone: the stage of "
       "train.extension_steps"},
      {NANORUN_ROW_KEY(stage, length), identifies, multiple_of(kernels::attention_block, max_length),
       "tokens of a sequence, in place of train.length"},
      {NANORUN_ROW_KEY(stage, longest_document), identifies, between(0, max_length),
       "data.packing = \"documents\": tokens beyond which a document is cut; 0: none is"},
      {NANORUN_ROW_KEY(stage, short_window), trains, between(1, max_length),
       "window of the layers with letter S in tokens"},
      {NANORUN_ROW_KEY(stage, long_window), trains, between(1, max_length),
       "window of the layers with letter L in tokens, in place of window.first and window.last"},
      {NANORUN_ROW_KEY(stage, lr_factor), trains, at_least(0), "factor on all learning rates"},
      {NANORUN_ROW_KEY(stage, targets), trains, at_least(0),
       "weights in the loss of the next token, the one after it, and the third, at the stage's first step"},
      {NANORUN_ROW_KEY(stage, targets_end), trains, at_least(0),
       "the same at its end, towards which they move linearly; empty: they stay"},
      {NANORUN_ROW_KEY(stage, prefix), trains, at_least(0),
       "weight in the loss of the next token's prefix (data.prefix_table), at the stage's first step"},
      {NANORUN_ROW_KEY(stage, prefix_end), trains, minus_one_or_at_least(0), "the same at its end; -1: it stays"},
  };
}

std::vector<Key> validation_keys() {
  return {
      {NANORUN_KEY(validation, every), trains, at_least(0), "steps between validations; 0: only after the last step"},
      {NANORUN_KEY(validation, tokens), trains, between(0, max_tokens),
       "tokens of a validation; a multiple of validation.length; 0: no validation"},
      {NANORUN_KEY(validation, length), trains, multiple_of(kernels::attention_block, max_length),
       "tokens of a validation sequence"},
      {NANORUN_KEY(validation, last_long_window), trains, between(0, max_length),
       "long window in tokens of the last validation; 0: that of the last step"},
  };
}

std::vector<Key> data_keys() {
  return {
      {NANORUN_KEY(data, train), identifies, path(),
       "token shards or .bin files in stream order; glob patterns expand sorted"},
      {NANORUN_KEY(data, validation), trains, path(),
       "token shards of validation, likewise; not looked at where validation.tokens = 0"},
      {NANORUN_KEY(data, end), trains, any(),
       "at the end of the training shards: stop with an error, or wrap to the first"},
      {NANORUN_KEY(data, changed), operates, any(),
       "where a run continues whose training shards do not begin with those of its checkpoint: refuse, or accept and "
       "go on at the same place of the new stream"},
      {NANORUN_KEY(data, allow_other_tokenizer), operates, any(),
       "go on where shards, a checkpoint or checkpoint.weights record different tokenizers"},
      {NANORUN_KEY(data, prefetch_steps), operates, between(1, 1024), "steps whose tokens are read ahead"},
      {NANORUN_KEY(data, packing), identifies, any(),
       "what sequences are made of: consecutive tokens of the stream, or whole documents, the last one cut"},
      {NANORUN_KEY(data, prefix_table), trains, path_or_empty(),
       "table of the shards' tokenizer (vocab.bpe or tokenizer.json): a token's prefix is the longest token with whose "
       "bytes its own begin; empty: none"},
  };
}

std::vector<Key> optimizer_keys() {
  return {
      {NANORUN_KEY(optimizer, muon_lr), trains, at_least(0), "Muon: learning rate of the matrices of the blocks"},
      {NANORUN_KEY(optimizer, muon_momentum_first), trains, fraction_below_one(), "Muon: momentum at step 0"},
      {NANORUN_KEY(optimizer, muon_momentum_last), trains, fraction_below_one(), "Muon: momentum after the warm-up"},
      {NANORUN_KEY(optimizer, muon_momentum_steps), trains, between(1, max_steps),
       "Muon: steps of the linear warm-up of the momentum"},
      {NANORUN_KEY(optimizer, muon_momentum_cooldown), trains, between(0, max_steps),
       "Muon: last steps, in which the momentum falls linearly to muon_momentum_first; 0: none"},
      {NANORUN_KEY(optimizer, orthogonalisation), trains, any(),
       "Muon: iteration that orthogonalises updates: Newton-Schulz, or Polar Express"},
      {NANORUN_KEY(optimizer, muon_block_heads), trains, between(0, 1024),
       "Muon: heads of query and key matrices that are orthogonalised together; 0: all"},
      {NANORUN_KEY(optimizer, normuon_beta), trains, fraction_below_one(),
       "Muon: decay of the second moment of each row or column (NorMuon); 0: none is kept"},
      {NANORUN_KEY(optimizer, muon_decay), trains, at_least(0),
       "Muon: cautious weight decay, w -= lr muon_lr muon_decay w where the update has the sign of w"},
      {NANORUN_KEY(optimizer, muon_truncates), trains, any(),
       "Muon: on GPUs, truncate its fp32 weights to bf16 for GEMMs, instead of rounding them to the nearest"},
      {NANORUN_KEY(optimizer, adam_epsilon_hat), trains, any(),
       "Adam: add adam_eps before the second moment's bias is corrected, not after"},
      {NANORUN_KEY(optimizer, adam_period), trains, between(1, 1024),
       "Adam: updates once in so many steps, with the sum of their gradients"},
      {NANORUN_KEY(optimizer, adam_beta1), trains, fraction_below_one(), "Adam: decay of the first moment"},
      {NANORUN_KEY(optimizer, adam_beta2), trains, fraction_below_one(), "Adam: decay of the second moment"},
      {NANORUN_KEY(optimizer, adam_eps), trains, above(0), "Adam: added to the root of the second moment"},
      {NANORUN_KEY(optimizer, adam_master), trains, any(),
       "Adam: format of the weights that it updates; bf16: rounded after each update, on GPUs without an fp32 master"},
      {NANORUN_KEY(optimizer, adam_moments), trains, any(),
       "Adam: format in which it keeps its moments; bf16: rounded after each update, which itself takes them "
       "unrounded"},
      {NANORUN_KEY(optimizer, lr_embedding), trains, at_least(0), "Adam: learning rate of token and value embeddings"},
      {NANORUN_KEY(optimizer, lr_head), trains, at_least(0), "Adam: learning rate of the head"},
      {NANORUN_KEY(optimizer, lr_scalar), trains, at_least(0), "Adam: learning rate of the blocks' scalar weights"},
      {NANORUN_KEY(optimizer, lr_skip), trains, at_least(0), "Adam: learning rate of the skip weights"},
  };
}

std::vector<Key> group_keys() {
  return {
      {NANORUN_ROW_KEY(group, tensors), trains, tensor_names(),
       "names of tensors, where * stands for any characters; the first group that names a tensor has it"},
      {NANORUN_ROW_KEY(group, lr), trains, at_least(0),
       "learning rate, of Muon or Adam, in place of [optimizer]'s; 0: the tensors stay as they are"},
      {NANORUN_ROW_KEY(group, beta1), trains, fraction_below_one(), "Adam: decay of the first moment"},
      {NANORUN_ROW_KEY(group, beta2), trains, fraction_below_one(), "Adam: decay of the second moment"},
      {NANORUN_ROW_KEY(group, decay), trains, at_least(0),
       "Adam: cautious weight decay, w -= lr^2 decay w where the update has the sign of w"},
      {NANORUN_ROW_KEY(group, master), trains, any(),
       "Adam: as optimizer.adam_master; a tied embedding has the head's; Muon's masters are fp32"},
      {NANORUN_ROW_KEY(group, moments), trains, any(),
       "Adam: as optimizer.adam_moments; a tied embedding has the head's; Muon's momentum is fp32"},
  };
}

std::vector<Key> checkpoint_keys() {
  return {
      {NANORUN_KEY(checkpoint, every), operates, at_least(0),
       "steps between checkpoints; 0: only when a run stops early"},
      {NANORUN_KEY(checkpoint, keep), operates, between(1, 1024), "newest checkpoints kept"},
      {NANORUN_KEY(checkpoint, milestone_every), operates, at_least(0),
       "steps whose checkpoints are kept for good; 0: none"},
      {NANORUN_KEY(checkpoint, at_end), operates, any(), "write a checkpoint after the last step"},
      {NANORUN_KEY(checkpoint, restart), operates, auto_none_or_path(),
       "auto: the newest checkpoint that verifies; none: from step 0, an older run of the name is kept as <name>.1, "
       ".2, ...; or a checkpoint file"},
      {NANORUN_KEY(checkpoint, weights), identifies, path_or_empty(),
       "checkpoint with whose weights a new run begins, at step 0 and without its optimizer's state; a run that has "
       "checkpoints of its own continues from these; empty: initial weights"},
      {NANORUN_KEY(checkpoint, on_failure), operates, any(),
       "a checkpoint that cannot be written: stop, or warn and continue; the trial one before the first step and the "
       "run's last one always stop it"},
  };
}

std::vector<Key> control_keys() {
  return {
      {NANORUN_KEY(stop, walltime_seconds), operates, between(0, max_seconds),
       "the run ends with a checkpoint before this long has passed since the program's start; 0: no limit"},
      {NANORUN_KEY(stop, file), operates, path_or_empty(),
       "stop when this file appears; empty: <run.outputs>/<run.name>/stop"},
      {NANORUN_KEY(stop, step), operates, at_least(0), "stop before this step as if interrupted; 0: never"},
      {NANORUN_KEY(trace, enabled), operates, any(), "record the time of each phase of each step in trace.h5"},
      {NANORUN_KEY(trace, json_steps), operates, at_least(0),
       "steps, counted from 0 and below train.steps, that also go into trace.json"},
      {NANORUN_KEY(trace, flush_every), operates, between(1, 100000), "steps between writes of trace.h5"},
      {NANORUN_KEY(comm, timeout_seconds), operates, above(0, max_seconds),
       "a collective that takes longer ends the job, as does a rank that shows no sign of life for longer in its own "
       "work; there more time is left to large GEMMs"},
      {NANORUN_KEY(comm, gradients), trains, any(),
       "format in which gradients travel to the rank that sums them, in fp32: fp32, or rounded to bf16 or e5m2"},
      {NANORUN_KEY(comm, gradient_scale), trains, between(1e-30, 1e30),
       "e5m2: factor on the gradients, summed over a rank's sequences, before rounding; products beyond 57344 "
       "saturate"},
      {NANORUN_KEY(comm, transport), operates, any(),
       "what carries tensors between GPUs: peers (GPUs of one node copy into each other's memory, which takes no "
       "SM), nccl, or auto: peers where all ranks are on one node and can, else nccl"},
  };
}

#undef NANORUN_KEY
#undef NANORUN_ROW_KEY

}  // namespace

const std::vector<Key>& key_table() {
  static const std::vector<Key> table = [] {
    std::vector<Key> all;
    for (auto part : {run_keys, model_keys, topology_keys, lm_head_keys, window_keys, train_keys, stage_keys,
                      validation_keys, data_keys, optimizer_keys, group_keys, checkpoint_keys, control_keys}) {
      for (Key& key : part()) all.push_back(std::move(key));
    }
    return all;
  }();
  return table;
}

std::string Key::path(std::optional<std::size_t> row) const {
  if (!has_rows(section)) return fmt::format("{}.{}", section, name);
  return fmt::format("{}.{}.{}", section, row ? fmt::format("{}", *row) : "N", name);
}

bool has_rows(std::string_view section) { return section == "stage" || section == "group"; }

std::size_t row_count(const Config& config, std::string_view section) {
  return section == "stage" ? config.stage.size() : section == "group" ? config.group.size() : 1;
}

void set_row_count(Config& config, std::string_view section, std::size_t count) {
  if (section == "stage") config.stage.resize(count);
  if (section == "group") config.group.resize(count);
}

std::string header_of(std::string_view section) {
  return has_rows(section) ? fmt::format("[[{}]]", section) : fmt::format("[{}]", section);
}

}  // namespace nanorun
