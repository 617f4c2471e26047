"""Keys of decks that reference.py does not model."""

# Keys of later records, with the values at which they change nothing; reference89.py has the others.
LATER = {
    "model": {
        "softcap_kind": "tanh", "softcap_shift": 0, "softcap_width": 1, "zero_attention_outputs": True, "init_std": 0,
        "init_std_outputs": 0, "init_embedding": 1, "init_value_embedding": 1, "tied_head": False, "residual": "unet",
        "embedding_norm": True, "norm_gains": False, "biases": False, "head_bias": False, "value_layers": [],
        "smear": False, "bigram_rows": 0, "bigram_sign_rows": 0, "skip_from": [], "skip_to": [], "attention_source": -1,
        "paired_layers": [], "xsa_layers": [], "gated_layers": [], "key_offset_layers": [], "composed_layers": [],
        "composition_window": 112, "gate_nets": False, "gate_net_layer": 4, "coefficient_width": 64, "mudd": False,
        "yarn": False, "rotary_frequencies": [], "bigram_columns": 0, "mudd_scale": 0.1, "mudd_value_scale": 1,
        "mudd_backout": 0.5, "skip_gate": False, "value_layers_gated_by_input": [], "value_tables": [],
        "gate_columns": 12, "second_embedding": False, "init_embedding2": 1, "init_residual": 1.05,
        "init_scale_mlp": 0, "qk_dims": [], "attention_scale_narrow": 0, "backout_from": -1, "yarn_last_window": 0,
        "qk_norm": True,
    },
    "train": {"extension_steps": 0, "loss": "mean", "untie_step": 0, "mlp_precision": "working", "warmup": 0,
              "cooldown_shape": "linear", "recompute_layers": []},
    "optimizer": {
        "muon_momentum_cooldown": 0, "orthogonalisation": "newton_schulz", "muon_block_heads": 0, "normuon_beta": 0,
        "muon_decay": 0, "muon_truncates": False, "adam_epsilon_hat": False, "adam_period": 1,
        "clip_norm": 0, "matrix_gradients": "fp32", "adam_master": "fp32", "adam_moments": "fp32", "muon_moments": "fp32", "matrix_rule": "muon",
        "decay_kind": "cautious", "orthogonalisation_maps": [], "orthogonalisation_steps": 0, "lr_matrix": 0.0006,
        "outer_every": 0, "outer_lr": 0.7, "outer_momentum": 0.5, "slow_momentum": 0, "fast_momentum": 0.85,
        "momentum_mix": 1, "momentum_mix_from": 0,
    },
}
