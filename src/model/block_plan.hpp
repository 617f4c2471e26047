#pragma once
// The plan of each block: what it computes, who makes the norms that it reads, what is kept for the backward pass, and
// which gradients join where. All of that is decided here, once; activations, mixes and both passes follow the plan.
//
// "Input of layer k" is the residual stream that layer k reads. Layer `layers` stands for what follows the last block.

#include <vector>

#include "src/config/config.hpp"

namespace nanorun {

/// What a sequence is for. In training each block keeps what its backward pass reads; in evaluation all blocks share
/// one block's buffers.
enum class Mode { training, evaluation };

/// Who makes the norm that a layer's attention reads.
enum class NormMaker {
  block,        ///< the block itself
  mix_below,    ///< the mix that ends the block below, in the op that makes the stream
  layer_below,  ///< a layer below, whose attention reads the same norm
};

/// Where the stream behind a block lies.
enum class OutputBuffer {
  own,
  of_input,       ///< in that of the block's input: a plain stream, which all blocks update in place
  of_all_blocks,  ///< in one buffer for all blocks
  none,           ///< nowhere: all its readers take the norm that the next layer's attention reads
};

/// The mixes of a block, in the order of the forward pass.
enum class BlockMix { before, after_attention, after_mlp };

/// Where the gradients lie that layers above send to a block's input.
enum class SentGradient {
  none,                   ///< nowhere: none are sent
  own,                    ///< in a buffer of their own
  output_of_skip_reader,  ///< in the output of the block that reads the input as its skip, which then no one reads
};

/// The layers [begin, end) whose injections send their gradients to x0 and to the second stream in one op. It follows
/// the backward pass of layer `begin`; begin = -1 stands for the first mix, which the op then includes.
struct InjectionSum {
  int begin = 0;
  int end = 0;
  bool adds_to_x0 = false;      ///< x0 has got a gradient before; else the op overwrites it
  bool adds_to_second = false;  ///< the second stream has got a gradient before

  bool empty() const { return begin == end; }
};

struct BlockPlan {
  int layer = 0;
  bool mudd = false;  ///< it mixes by columns of a MUDD net, see is_mudd_layer()

  // The block's input.
  bool mixes_input = false;      ///< it begins with a mix, BlockMix::before
  bool input_is_norm = false;    ///< its input is kept only as the norm that its attention reads
  bool input_is_tapped = false;  ///< layers above, or their mixes, read its input too and send gradients to it
  int skip_input = -1;           ///< BlockMix::before adds the input of this layer as a skip; -1: none
  int skip = -1;                 ///< index of that skip among the model's, whose learned numbers it has
  int skip_reader = -1;          ///< U-net: the layer that adds this block's input as its skip; -1: none

  // Attention.
  bool attends = false;             ///< it has attention
  int attention_input = 0;          ///< the layer whose input attention reads, normed: itself, or one below
  NormMaker attention_norm = {};    ///< who makes that norm
  int norm_owner = 0;               ///< the lowest layer that reads that norm, whose buffer holds it
  bool shares_norm = false;         ///< other layers read that norm too
  bool adds_norm_gradient = false;  ///< a layer above has sent its gradient of that norm before this one does
  int qk_dim = 0;                   ///< width of Q and K of a head
  bool pairs_heads = false;         ///< heads attend in pairs
  bool offsets_keys = false;        ///< keys take half of their dims from the token before
  bool composes_heads = false;      ///< heads are composed dynamically (DC)
  bool has_xsa = false;             ///< heads lose what lies along their token's own value (XSA)
  bool gates_heads = false;         ///< each head has a gate
  bool heads_have_net = false;      ///< a coefficient net gives XSA's shares and the gates; else learned weights do

  // Values.
  bool mixes_values = false;           ///< U-net: its values have factors of their own (value_mix)
  bool scales_values = false;          ///< its values and attention's output have factors (attention_factors)
  bool takes_up_values = false;        ///< its values are mixed with layer 0's or with a value embedding
  bool takes_up_first_values = false;  ///< its values are mixed with layer 0's
  bool lends_values = false;           ///< it is layer 0 there: layers above send gradients to its values
  int value_table = -1;                ///< index of that value embedding; -1: none
  bool gates_value_rows = false;       ///< the rows of the value embedding have gates
  bool gates_read_rows = false;        ///< these gates read the rows too, else only the norm that attention reads
  bool keeps_value_rows = false;       ///< these rows are kept for MUDD's last mix; elsewhere they are looked up anew
  bool adds_row_gradient = false;      ///< a layer above, or the last mix, has sent these rows a gradient before
  bool completes_value_table = false;  ///< no layer below adds to the gradient of the table

  // What attention and the MLP add to the stream.
  bool adds_injections = false;       ///< a mix of the block adds x0
  bool injects_second = false;        ///< it adds the second stream too
  bool attention_is_implied = false;  ///< attention's output is not kept: its mix recovers it from the norm of the sum
  bool mlp_is_implied = false;        ///< the MLP's output is not kept: its mix recovers it from the norm of the sum

  // The block's output.
  OutputBuffer output = {};      ///< where it lies
  bool norms_next = false;       ///< the mix behind the MLP makes the norm that the next layer's attention reads
  bool enters_last_mix = false;  ///< the last block's: the final norm reads a mix of this output and earlier streams

  // Backward.
  bool leaves_factors = false;   ///< mixes write the gradient g of their sum; branches multiply g by their factor
  bool hands_on_factor = false;  ///< the gradient of the input is a factor times g; the block below multiplies
  BlockMix joins_in = BlockMix::after_mlp;  ///< the mix that adds what layers above have sent to the block's input
  SentGradient sent_gradient = {};          ///< where these gradients lie
  bool sends_skip_gradient = false;   ///< its skip's gradient is sent to skip_input; else it joins that of the stream
  bool starts_skip_gradient = false;  ///< it is the first that is sent there
  bool starts_x0_gradient = false;    ///< U-net: no layer above sends x0 a gradient
  bool sends_to_second = false;       ///< its MUDD mix sends the second stream a gradient
  InjectionSum injections;            ///< those whose gradients are summed behind its backward pass
  // What is cleared before the backward pass. Elsewhere the first gradient that is sent overwrites the buffer.
  bool clears_input_gradient = false;  ///< what layers above send to the block's input
  bool clears_row_gradient = false;    ///< what layers send to the rows of its value embedding
};

/// The plans of all blocks, for sequences of a mode.
std::vector<BlockPlan> block_plans(const ModelConfig& config, Mode mode);

/// The injections whose gradients are summed behind the backward pass of all blocks, with the first mix.
InjectionSum last_injections(const std::vector<BlockPlan>& plans);

}  // namespace nanorun
