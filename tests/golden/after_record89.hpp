#pragma once
// Mechanisms after record 89, as record89/config.py has them in AFTER_RECORD89.

#include "src/config/config.hpp"

namespace nanorun {

/// TAPER_STAGES of record89/config.py.
inline void set_taper(Config& config) {
  config.stage = {{1.0 / 3, 128, 24, 6, 16, 1, {1, 0.5, 0.25}, {1, 0.5, 0}, 0.25, 0.25},
                  {1.0 / 6, 256, 48, 12, 28, 1.52, {1, 0.5}, {1, 0.25}, 0.2, 0.2},
                  {1.0 / 6, 256, 48, 12, 28, 1.52, {1, 0.25}, {1, 0}, 0.1, 0.1},
                  {2.0 / 9, 384, 60, 18, 40, 1.73, {1}, {1}, 0, 0, 0, 20},
                  {1.0 / 9, 256, 60, 18, 40, 1.4, {1}, {1}, 0, 0, 0, 20},
                  {0, 128, 60, 22, 48, 1, {1}, {1}, 0, 0, 0, 20}};
  config.train.cooldown = 0.8;
  config.train.final_lr_factor = 0.2;
  config.train.untie_step = 17;
}

inline void set_two_momenta(Config& config) {
  OptimizerConfig& o = config.optimizer;
  o.slow_momentum = 0.98;
  o.fast_momentum = 0.8;
  o.momentum_mix = 0.4385;
  o.momentum_mix_from = 5;
  o.muon_decay = 1.5;
  o.muon_momentum_last = 0.93;
}

inline void set_late_tables(Config& config) {
  config.group[2].period = 4;
  config.group[2].period_from = 7;
}

inline void set_narrow(Config& config) {
  ModelConfig& m = config.model;
  m.qk_dims = {4, 4, 4, 8, 4, 4, 0, 4, 4, 4, 8};
  m.attention_scale = 0.085;
  m.attention_scale_narrow = 0.12;
}

// FIXED_MLP, DELAYED_MLP and FIXED_QKV of record89/fp8.py.
inline constexpr Fp8Config fixed_fp8_mlp{
    Fp8Forward::e4m3, Fp8Gradient::e5m2, Fp8Scales::fixed, Fp8WeightScales::delayed, 1.0 / 16, 1.0 / 64, 1.03};
inline constexpr Fp8Config delayed_fp8_mlp{
    Fp8Forward::e4m3, Fp8Gradient::e4m3, Fp8Scales::delayed, Fp8WeightScales::exact, 0, 0, 1.25};
inline constexpr Fp8Config fixed_fp8_qkv{
    Fp8Forward::e4m3, Fp8Gradient::e4m3, Fp8Scales::fixed, Fp8WeightScales::exact, 1.0 / 16, 1.0 / 448, 1.25};

}  // namespace nanorun
