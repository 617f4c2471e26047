// Keys of the model: [model], [head], [window].

#include "src/config/config_key_rows.hpp"

namespace nanorun::key_rows {

std::vector<Key> model_keys() {
  return {
      {NANORUN_KEY(model, vocabulary), trains, between(2, 65536),
       "token ids are below this; the LM head has as many columns, padded to a multiple of 128"},
      {NANORUN_KEY(model, width), trains, multiple_of(4, max_width),
       "width d of the residual stream; equals heads * head_dim"},
      {NANORUN_KEY(model, heads), trains, between(1, 1024), "attention heads"},
      {NANORUN_KEY(model, head_dim), trains, multiple_of(4, 4096), "width of an attention head"},
      {NANORUN_KEY(model, qk_dims), trains, zero_or_multiple_of(4, 4096),
       "width of Q and K in the heads of each layer, at most head_dim, the width of V; 0 in layers without attention; "
       "one number: in all layers; empty: head_dim. Narrower ones have the first pairs of dims that the widest have"},
      {NANORUN_KEY(model, layers), trains, between(1, max_layers), "blocks; even with residual = \"unet\""},
      {NANORUN_KEY(model, mlp_ratio), trains, between(1, 64), "hidden width of the MLP in units of model.width"},
      {NANORUN_KEY(model, norm_eps), trains, above(0), "eps of norm(x) = x / sqrt(mean(x^2) + eps)"},
      {NANORUN_KEY(model, value_path), trains, any(),
       "what mixes into the values: none, the values of layer 0 (first), value embeddings, or embeddings with gates"},
      {NANORUN_KEY(model, value_embeddings), trains, between(1, max_layers / 2),
       "value_path = \"embeddings\": tables n of value embeddings, used on the first n layers and again on the last n"},
      {NANORUN_KEY(model, layers_without_attention), trains, between(0, max_layers - 1),
       "layers, counted from 0, that have only the MLP"},
      {NANORUN_KEY(model, qk_norm), trains, any(),
       "whether queries and keys are normed over each head before rotary turns them"},
      {NANORUN_KEY(model, rotary), trains, any(), "rotary frequencies: all pairs turn, or only the first half of them"},
      {NANORUN_KEY(model, rotary_base), trains, above(1), "base of the rotary frequencies"},
      {NANORUN_KEY(model, rotary_frequencies), trains, at_least(0),
       "in place of rotary_base: the frequency of each pair that turns, in radians per token; empty: by rotary_base"},
      {NANORUN_KEY(model, attention_scale), trains, at_least(0), "factor on q k^T; 0: 1 / sqrt(head_dim)"},
      {NANORUN_KEY(model, attention_scale_narrow), trains, at_least(0),
       "that factor in layers whose qk_dims is below head_dim; 0: attention_scale * sqrt(head_dim / qk_dims)"},
      {NANORUN_KEY(model, softcap), trains, above(0, kernels::max_softcap), "c of the logits"},
      {NANORUN_KEY(model, softcap_kind), trains, any(),
       "logits c tanh(z / c), c sigmoid((z + softcap_shift) / softcap_width), c z / sqrt(z^2 + c^2) (isru), or z "
       "(none)"},
      {NANORUN_KEY(model, softcap_shift), trains, any(), "of the sigmoid"},
      {NANORUN_KEY(model, softcap_width), trains, above(0), "of the sigmoid"},
      {NANORUN_KEY(model, init_scale), trains, at_least(0),
       "weight matrices start uniform in +-b, b = init_scale / sqrt(fan_in), unless init_std says otherwise"},
      {NANORUN_KEY(model, init_scale_mlp), trains, at_least(0),
       "init_scale of the first matrix of each MLP, mlp_in; 0: init_scale"},
      {NANORUN_KEY(model, init_std), trains, at_least(0),
       "standard deviation of the blocks' initial weight matrices, which are normal then; 0: uniform, by init_scale"},
      {NANORUN_KEY(model, init_std_outputs), trains, at_least(0),
       "with init_std and without zero_outputs: that of the output projections; 0: init_std"},
      {NANORUN_KEY(model, zero_outputs), trains, any(),
       "output projections and the LM head start at zero; the LM head does not where it is tied"},
      {NANORUN_KEY(model, zero_attention_outputs), trains, any(),
       "with zero_outputs: whether attention's output projections do, too"},
      {NANORUN_KEY(model, init_embedding), trains, at_least(0),
       "standard deviation of the initial token embedding, and of a tied LM head"},
      {NANORUN_KEY(model, init_value_embedding), trains, at_least(0),
       "standard deviation of the initial value embeddings"},
      {NANORUN_KEY(model, init_embedding2), trains, at_least(0), "standard deviation of the initial second embedding"},
      {NANORUN_KEY(model, init_residual), trains, any(), "residual = \"before\": start of each layer's factor r"},
  };
}

/// What joins layers.
std::vector<Key> stream_keys() {
  const Check layer = between(0, max_layers - 1), layer_or_none = between(-1, max_layers - 1);
  return {
      {NANORUN_KEY(model, tied_head), trains, any(),
       "LM head and embedding start alike and are one parameter, all along or up to train.untie_step"},
      {NANORUN_KEY(model, residual), trains, any(),
       "how blocks join the residual stream: unet (skips join the first half to the second), scaled (learned "
       "factors on stream and branch, and the additions that the keys below name), before (x = r x + a x0 + b z with "
       "learned r, a, b, then x += attention(norm(x)), x += mlp(norm(x)); z is the second embedding, or bigrams), or "
       "plain (x += attention(norm(x)), x += mlp(norm(x)), and nothing else)"},
      {NANORUN_KEY(model, embedding_norm), trains, any(),
       "residual = \"plain\": whether the stream begins with the norm of the embedding, or with the embedding"},
      {NANORUN_KEY(model, norm_gains), trains, any(), "residual = \"plain\": each norm of the stream is g * norm(x)"},
      {NANORUN_KEY(model, biases), trains, any(), "residual = \"plain\": every linear layer of the blocks has a bias"},
      {NANORUN_KEY(model, head_bias), trains, any(), "residual = \"plain\": so has the LM head, before the softcap"},
      {NANORUN_KEY(model, value_layers), trains, layer,
       "value_path = \"gated_embeddings\": layers, ascending, that take up a value embedding of their own"},
      {NANORUN_KEY(model, value_layers_gated_by_input), trains, layer,
       "of these, layers whose gate reads attention's input alone, not the value embedding, too"},
      {NANORUN_KEY(model, value_tables), trains, between(0, max_layers - 1),
       "the table that each of value_layers reads, counted from 0 in the order in which layers first read them, so "
       "that layers share tables; empty: each has its own"},
      {NANORUN_KEY(model, gate_columns), trains, between(1, kernels::max_smear_gate),
       "columns that the gates of smear, skip, attention and value embeddings read; a gate that reads two streams "
       "reads half as many of each"},
      {NANORUN_KEY(model, smear), trains, any(),
       "add to each token's embedding a gated part of that of the token before"},
      {NANORUN_KEY(model, second_embedding), trains, any(),
       "residual = \"before\": a second embedding of the tokens, z = norm(row), which all layers add"},
      {NANORUN_KEY(model, bigram_rows), trains, zero_or_between(2, max_bigram_rows),
       "rows of a table of hashed pairs of tokens, which all layers with attention add; 0: none"},
      {NANORUN_KEY(model, bigram_columns), trains, between(0, max_width),
       "columns of that table, added to the first of the stream; 0: model.width"},
      {NANORUN_KEY(model, bigram_sign_rows), trains, between(0, 65536),
       "rows of fixed random signs by which those of the pairs are multiplied; 0: none"},
      {NANORUN_KEY(model, skip_from), trains, layer_or_none,
       "layers whose outputs enter once more, x += sigmoid(s) x_from with a learned s, each before a later layer; "
       "empty, or -1 alone: no skip"},
      {NANORUN_KEY(model, skip_to), trains, layer_or_none,
       "these later layers, one for each of skip_from, none of them twice; residual = \"scaled\" has one skip at most, "
       "to a layer without attention"},
      {NANORUN_KEY(model, skip_gate), trains, any(),
       "a gate per token on what each skip carries, 2 sigmoid(<w, first columns of x0>); without model.gate_nets, "
       "whose "
       "second net has one"},
      {NANORUN_KEY(model, backout_from), trains, layer_or_none,
       "residual = \"before\": the final norm reads x - beta x_from, the output of this layer times a learned beta "
       "that "
       "starts at 0.5; -1: x"},
      {NANORUN_KEY(model, attention_source), trains, layer_or_none,
       "layers after this one attend from its output; -1: each from its own input"},
  };
}

/// What attention does beyond softmax, and coefficients from nets.
std::vector<Key> coefficient_keys() {
  const Check layer = between(0, max_layers - 1);
  return {
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
      {NANORUN_KEY(model, yarn_last_window), trains, between(0, max_length),
       "the longest window that they are rescaled to: they stay where a stage changes to a longer one; 0: to any"},
  };
}

std::vector<Key> lm_head_keys() {
  return {
      {NANORUN_KEY(head, precision), trains, any(),
       "format of the LM head's GEMMs in training; auto: the device's best"},
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

}  // namespace nanorun::key_rows
