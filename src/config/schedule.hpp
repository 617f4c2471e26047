#pragma once
// Everything that changes with the step (counted from 0), as pure functions of it.

#include <array>
#include <optional>
#include <vector>

#include "src/config/config.hpp"

namespace nanorun {

/// How far attention reaches, in tokens: the windows of layers with the short window and of layers with the long one,
/// and the tokens of a document after which it begins anew; 0: at no place within a document.
struct Windows {
  int short_tokens = 0;
  int long_tokens = 0;
  int document_tokens = 0;
  bool operator==(const Windows&) const = default;
};

/// Steps that the schedule divides among the stages: all but the extension.
long scheduled_steps(const TrainConfig& train);

/// Number of stages, at least one: a deck without [[stage]] has the stage that [train] and [window] describe.
int stage_count(const Config& config);
/// The stage of a step; steps behind the last one belong to the last stage.
int stage_of(const Config& config, long step);
/// Steps [first, end) of a stage.
struct StageSteps {
  long first, end;
};
StageSteps stage_steps(const Config& config, int stage);

/// Tokens of a training sequence at a step, and the most at any step.
int length_at(const Config& config, long step);
int longest_length(const Config& config);
/// Tokens of all ranks in a step, and in all steps before it.
std::int64_t step_tokens(const Config& config, long step);
std::int64_t tokens_before(const Config& config, long step);
/// Most tokens of a document; the rest is cut off. 0: no limit.
int longest_document_at(const Config& config, long step);

Windows windows_at(const Config& config, long step);
/// The windows of a validation after `step` updates; the last validation, after train.steps, may have its own.
/// Documents are whole there.
Windows validation_windows(const Config& config, long step);

/// Weights of the targets that a row has, see kernels/lm_head/lm_head.hpp.
struct Targets {
  std::array<double, kernels::max_targets> weights{1, 0, 0};
  int count = 1;
  double prefix_weight = 0;
};
Targets targets_at(const Config& config, long step);
/// Which columns of the LM head the softmax of a training sequence covers, see src/data/candidates.hpp.
struct CandidateDraw {
  int count = 0;  ///< 0: all
  int start = 0;  ///< where on their walk the draw of columns that are no targets begins
};
/// For sequence `sequence` of the train.sequences of a step. Any rank that has the sequence draws the same columns.
CandidateDraw candidate_draw(const Config& config, long step, int sequence);
/// The most columns that are drawn at any step; 0 where no stage draws any.
int most_candidates(const Config& config);

/// Sum of the targets' weights at a step whose loss is a weighted sum over several targets; absent at a step whose loss
/// is the cross-entropy of the next token.
std::optional<double> loss_weights(const Config& config, long step);

/// Factor on every learning rate. It is the stage's factor until the cooldown: over the last fraction `cooldown` of the
/// scheduled steps it moves to final_lr_factor, linearly or by half a cosine, and keeps that in the extension. With
/// stages the cooldown begins at a whole step. In the first `warmup` steps all that is multiplied by (step + 1) /
/// warmup.
double lr_factor(const Config& config, long step);

/// Muon's momentum: linear from first to last over the first muon_momentum_steps steps, and back over the last
/// muon_momentum_cooldown.
double muon_momentum(const Config& config, long step);

/// Whether an outer step follows the update of a step (kernels/optimizer/outer_nesterov.hpp).
bool outer_due(const Config& config, long step);

/// Whether an average has had a sample after one of the first `steps` updates.
bool average_begun(const Config& config, const AverageConfig& average, long steps);
/// Rate at which an average takes the weights that the update of a step has made (kernels/optimizer/average.hpp): 1 for
/// its first sample, then AverageConfig::rate; 0 where it takes none. The last step has a sample.
double average_rate(const Config& config, const AverageConfig& average, long step);

/// Whether a validation follows after `step` updates.
bool validation_due(const Config& config, long step);
/// Whether a checkpoint follows after `step` updates, though nothing stops the run.
bool checkpoint_due(const Config& config, long step);

/// Rotary frequencies in radians per position of the pairs j < D/2 of an attention head, and the factors on q kᵀ, in a
/// stage. YaRN (Peng et al. 2023, arXiv:2309.00071) rescales them where a stage changes the long window: with
/// r = w f / 2 pi for the window w of the stage before and w' of the new one, g = clamp((r - 1) / 31, 0, 1),
///   f = f (w / w' + g (1 - w / w')),  scale = scale (1 + 0.2 ln(w' / w))
struct RotaryStage {
  std::vector<double> frequencies;
  double attention_scale;             ///< of layers whose Q and K are as wide as their heads
  double attention_scale_narrow = 0;  ///< of the others; 0: by their width, see attention_scale()
};
RotaryStage rotary_stage(const Config& config, int stage);
/// The factor on q kᵀ of a layer in that stage.
double attention_scale(const ModelConfig& model, const RotaryStage& rotary, int layer);

/// Whether layer uses the long window.
bool is_long_layer(const WindowConfig& config, int layer);

}  // namespace nanorun
