// Keys of what is trained on and how: [train], [[stage]], [validation], [data], [optimizer], [[group]],
// [[average]].

#include "src/config/config_key_rows.hpp"

namespace nanorun::key_rows {

std::vector<Key> train_keys() {
  return {
      {NANORUN_KEY(train, steps), trains, between(1, max_steps), "optimizer steps"},
      {NANORUN_KEY(train, sequences), identifies, between(1, 65536),
       "sequences of a step over all ranks; a multiple of the rank count"},
      {NANORUN_KEY(train, length), identifies, multiple_of(kernels::attention_block, max_length),
       "tokens of a sequence"},
      {NANORUN_KEY(train, recompute), operates, any(),
       "what the backward pass forms again instead of keeping it, which saves memory: none, mlp (the hidden units), or "
       "block (all that attention and the MLP save, but for the norms that they read)"},
      {NANORUN_KEY(train, recompute_layers), operates, between(0, max_layers - 1),
       "layers, counted from 0, of which train.recompute forms this again; empty: all"},
      {NANORUN_KEY(train, mlp_precision), trains, any(),
       "format of the operands of the MLP's forward products in training: working, that of the build, or fp8 (e4m3), "
       "by record 89's rules in the place of [fp8.mlp]; the backward pass and validation take them unrounded"},
      {NANORUN_KEY(train, warmup), trains, between(0, max_steps),
       "first steps, in which learning rates rise linearly: step s has (s + 1) / warmup of them; 0: none"},
      {NANORUN_KEY(train, cooldown), trains, between(0, 1),
       "last fraction of the scheduled steps, where learning rates fall"},
      {NANORUN_KEY(train, cooldown_shape), trains, any(),
       "how they fall: linearly, or as the half of a cosine from its top to its bottom"},
      {NANORUN_KEY(train, final_lr_factor), trains, between(0, 1),
       "factor on the learning rates reached at the last scheduled step"},
      {NANORUN_KEY(train, extension_steps), trains, between(0, max_steps),
       "of train.steps, the last, which the schedule leaves out: they train at the final rates"},
      {NANORUN_KEY(train, loss), trains, any(),
       "what is differentiated of the losses of a sequence's tokens: their mean or their sum"},
      {NANORUN_KEY(train, untie_step), trains, between(-1, max_steps),
       "model.tied_head: LM head and embedding are one parameter up to the update at this step; 0: all along; -1: they "
       "only start alike"},
  };
}

namespace {

/// Keys of [fp8.<product>], whose struct `member` gives.
template <class Member>
std::vector<Key> fp8_keys(const char* section) {
  const auto key = [section](const char* name, Field (*member)(Config&, std::size_t), Check check, const char* help) {
    return Key{section, name, member, trains, std::move(check), help};
  };
#define NANORUN_FP8_KEY(name) #name, [](Config & config, std::size_t) -> Field { return &Member::of(config).name; }
  return {
      key(NANORUN_FP8_KEY(forward), any(),
          "format of the operands of the forward products in training: working, that of the build, or e4m3; validation "
          "takes them unrounded"),
      key(NANORUN_FP8_KEY(gradient), any(),
          "format of the gradients that the backward products take, whose other operands are those of the forward "
          "pass; "
          "working: neither is rounded"),
      key(NANORUN_FP8_KEY(scales), any(),
          "what the scale of the layer's input follows: the largest magnitude in the sequence (exact), in the step "
          "before "
          "over all ranks, times the margin (delayed), or scale_x (fixed)"),
      key(NANORUN_FP8_KEY(weight_scales), any(),
          "what the scales of the weights follow: the weights (exact), or from step 16 on those before the last "
          "update, "
          "times 1.12 (delayed)"),
      key(NANORUN_FP8_KEY(scale_x), zero_or_between(1e-9, 1e9),
          "with scales = \"fixed\": the input is divided by it; 0: the least power of two with which no norm of "
          "model.width saturates"),
      key(NANORUN_FP8_KEY(scale_g), zero_or_between(1e-12, 1e12),
          "the gradient that enters the backward products is divided by it; it belongs to the sum of the tokens' "
          "losses, "
          "with train.loss = \"mean\" it is divided by the sequence's tokens; 0: exact"),
      key(NANORUN_FP8_KEY(margin), between(1, 100),
          "factor on the largest magnitudes of delayed inputs and of hidden units, whose scale is always delayed"),
  };
#undef NANORUN_FP8_KEY
}

struct OfMlp {
  static Fp8Config& of(Config& config) { return config.fp8.mlp; }
};
struct OfQkv {
  static Fp8Config& of(Config& config) { return config.fp8.qkv; }
};

}  // namespace

std::vector<Key> fp8_mlp_keys() { return fp8_keys<OfMlp>("fp8.mlp"); }
std::vector<Key> fp8_qkv_keys() { return fp8_keys<OfQkv>("fp8.qkv"); }

std::vector<Key> stage_keys() {
  return {
      {NANORUN_ROW_KEY(stage, share), trains, between(0, 1),
       "of the scheduled steps; the shares add up to 1; 0, of the last stage alone: the stage of "
       "train.extension_steps"},
      {NANORUN_ROW_KEY(stage, length), identifies, multiple_of(kernels::attention_block, max_length),
       "tokens of a sequence, in place of train.length"},
      {NANORUN_ROW_KEY(stage, longest_document), identifies, between(0, max_length),
       "data.packing = \"documents\": tokens beyond which a document is cut; 0: none is"},
      {NANORUN_ROW_KEY(stage, attention_document), trains, between(0, max_length),
       "data.packing = \"documents\": tokens of a document after which attention begins anew, in training alone; 0: it "
       "reaches back to the document's first token"},
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
      {NANORUN_ROW_KEY(stage, candidates), trains, between(0, 65536),
       "columns of the LM head that the softmax of a training sequence covers: its targets, and others that change "
       "with "
       "step and sequence, without any correction; a multiple of 128, at least as many as a sequence has different "
       "targets; 0: all columns, as in validation"},
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
       "what sequences are made of: consecutive tokens of the stream (stream, rows), or whole documents, the last one "
       "cut (documents); attention stays within a document, or with rows within data.row_length tokens"},
      {NANORUN_KEY(data, row_length), trains, between(1, max_length),
       "data.packing = \"rows\": tokens of a row; divides the length of every sequence"},
      {NANORUN_KEY(data, distinct_sequences), identifies, between(0, 1024),
       "for benchmark.sh --weak alone: a step takes so many sequences from the stream, and trains on each equally "
       "often, "
       "in a shuffled order; a step of fewer trains on the first ones; 0: all sequences of a step are different"},
      {NANORUN_KEY(data, prefix_table), trains, path_or_empty(),
       "table of the shards' tokenizer (vocab.bpe or tokenizer.json): a token's prefix is the longest token with whose "
       "bytes its own begin; empty: none"},
  };
}

std::vector<Key> optimizer_keys() {
  return {
      {NANORUN_KEY(optimizer, matrix_rule), trains, any(), "rule that updates the matrices of the blocks"},
      {NANORUN_KEY(optimizer, matrix_gradients), trains, any(),
       "format in which the gradients of the blocks' matrices are kept between backward pass and update; bf16: half of "
       "the memory, rounded after each sequence of a rank, to which the next one adds, and after each sum over ranks; "
       "docs/step.md says what was seen of its cost in loss"},
      {NANORUN_KEY(optimizer, clip_norm), trains, at_least(0),
       "largest global norm of the gradients, over all tensors; larger ones are scaled down to it before the update; "
       "it is the norm of the gradient of the step's mean loss, with train.loss = \"sum\" of the mean over "
       "sequences of the sums over their tokens; 0: gradients are not clipped"},
      {NANORUN_KEY(optimizer, decay_kind), trains, any(),
       "weight decay where muon_decay or a group's decay asks for it: cautious, where the update has the sign of w, or "
       "plain, everywhere: w -= lr decay w"},
  };
}

std::vector<Key> muon_keys() {
  return {
      {NANORUN_KEY(optimizer, muon_lr), trains, at_least(0), "Muon: learning rate of the matrices of the blocks"},
      {NANORUN_KEY(optimizer, muon_momentum_first), trains, fraction_below_one(), "Muon: momentum at step 0"},
      {NANORUN_KEY(optimizer, muon_momentum_last), trains, fraction_below_one(), "Muon: momentum after the warm-up"},
      {NANORUN_KEY(optimizer, muon_momentum_steps), trains, between(1, max_steps),
       "Muon: steps of the linear warm-up of the momentum"},
      {NANORUN_KEY(optimizer, muon_momentum_cooldown), trains, between(0, max_steps),
       "Muon: last steps, in which the momentum falls linearly to muon_momentum_first; 0: none"},
      {NANORUN_KEY(optimizer, slow_momentum), trains, fraction_below_one(),
       "Muon: decay of a second, slow momentum of the matrices of the blocks; 0: there is none"},
      {NANORUN_KEY(optimizer, fast_momentum), trains, fraction_below_one(),
       "Muon: decay of the first momentum beside the slow one, from step momentum_mix_from on; before it and in "
       "Nesterov's step muon_momentum_first to muon_momentum_last hold"},
      {NANORUN_KEY(optimizer, momentum_mix), trains, between(0, 1),
       "Muon: weight of the first momentum in the update from step momentum_mix_from on; the slow one has the rest"},
      {NANORUN_KEY(optimizer, momentum_mix_from), trains, between(0, max_steps),
       "Muon: first step in which the slow momentum counts; it is kept from step 0 on"},
      {NANORUN_KEY(optimizer, orthogonalisation), trains, any(),
       "Muon: iteration that orthogonalises updates: Newton-Schulz, Polar Express, or six maps of another polynomial "
       "that leave singular values nearer to 1"},
      {NANORUN_KEY(optimizer, orthogonalisation_maps), trains, any(),
       "in place of it: a, b, c of each step X = a X + (b A + c A^2) X with A = X X^T, one step after the other"},
      {NANORUN_KEY(optimizer, orthogonalisation_steps), trains, between(0, 64),
       "steps of the iteration: the first of its maps, or all of them and the last one again; 0: each map once"},
      {NANORUN_KEY(optimizer, muon_block_heads), trains, between(0, 1024),
       "Muon: attention heads of query and key matrices that are orthogonalised together; 0: all"},
      {NANORUN_KEY(optimizer, normuon_beta), trains, fraction_below_one(),
       "Muon: decay of the second moment of each row or column (NorMuon); 0: none is kept"},
      {NANORUN_KEY(optimizer, muon_decay), trains, at_least(0),
       "Muon: weight decay, w -= lr muon_lr muon_decay w where the update has the sign of w, or with plain decay w -= "
       "lr "
       "muon_decay w, where lr lacks the factor of the matrix's shape"},
      {NANORUN_KEY(optimizer, muon_truncates), trains, any(),
       "Muon: on GPUs, truncate its fp32 weights to bf16 for GEMMs, instead of rounding them to the nearest"},
      {NANORUN_KEY(optimizer, muon_moments), trains, any(),
       "Muon: format in which it keeps the momenta of matrices; bf16: rounded after each update, which itself takes "
       "them unrounded; NorMuon's second moments are fp32; docs/step.md says what was seen of its cost in loss"},
  };
}

std::vector<Key> adam_and_outer_keys() {
  return {
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
       "unrounded; docs/step.md says what was seen of its cost in loss"},
      {NANORUN_KEY(optimizer, lr_matrix), trains, at_least(0),
       "Adam: learning rate of the matrices of the blocks, with matrix_rule = \"adam\""},
      {NANORUN_KEY(optimizer, lr_embedding), trains, at_least(0), "Adam: learning rate of token and value embeddings"},
      {NANORUN_KEY(optimizer, lr_head), trains, at_least(0), "Adam: learning rate of the LM head"},
      {NANORUN_KEY(optimizer, lr_scalar), trains, at_least(0),
       "Adam: learning rate of learned scalars, biases and gains"},
      {NANORUN_KEY(optimizer, lr_skip), trains, at_least(0), "Adam: learning rate of the skip weights"},
      {NANORUN_KEY(optimizer, outer_every), trains, between(0, max_steps),
       "updates after which an outer Nesterov step takes their sum as a gradient (MuLoCo with one worker, Snoo); 0: "
       "none"},
      {NANORUN_KEY(optimizer, outer_lr), trains, at_least(0), "its learning rate"},
      {NANORUN_KEY(optimizer, outer_momentum), trains, fraction_below_one(), "its momentum"},
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
       "Adam: weight decay, w -= lr^2 decay w where the update has the sign of w, or w -= lr decay w "
       "(optimizer.decay_kind)"},
      {NANORUN_ROW_KEY(group, master), trains, any(),
       "Adam: format of the weights that it updates; auto: optimizer.adam_master; a tied embedding has the LM head's; "
       "Muon's masters are fp32, except for learned scalars"},
      {NANORUN_ROW_KEY(group, moments), trains, any(),
       "format of the moments; auto: optimizer.adam_moments, or where Muon updates the tensors optimizer.muon_moments; "
       "a tied embedding has the LM head's"},
      {NANORUN_ROW_KEY(group, rule), trains, any(),
       "rule that updates the tensors: auto, Adam or for matrices of the blocks optimizer.matrix_rule; or muon, also "
       "for gates and other learned scalars of several rows and columns, but not for vectors and single numbers"},
      {NANORUN_ROW_KEY(group, period), trains, between(0, 1024),
       "lookup tables alone: from step period_from on Adam updates once in so many steps, a multiple n of "
       "optimizer.adam_period, with beta1 and beta2 to the power of n and n times the decay; 0: as it does before"},
      {NANORUN_ROW_KEY(group, period_from), trains, between(0, max_steps), "first step of that period"},
  };
}

std::vector<Key> average_keys() {
  return {
      {NANORUN_ROW_KEY(average, tensors), trains, tensor_names(),
       "names of tensors, where * stands for any characters; block.N.qkv.q, .k and .v are the matrices of "
       "block.N.qkv"},
      {NANORUN_ROW_KEY(average, from_last), trains, between(0, max_steps),
       "last steps of train.steps, the extension included, in which the weights are averaged; must be given"},
      {NANORUN_ROW_KEY(average, every), trains, between(1, max_steps),
       "steps from one sample to the next; the first of them and the last step of the run have one"},
      {NANORUN_ROW_KEY(average, rate), trains, between(0, 1),
       "of a sample w: E += rate (w - E); the first sample is E itself; must be given"},
      {NANORUN_ROW_KEY(average, blend), trains, between(0, 1),
       "of the average in the weights of the finished model: w = (1 - blend) w + blend E, one [[average]] after the "
       "other"},
  };
}

}  // namespace nanorun::key_rows
