"""What nanorun exports, as tests read it: weights in the safetensors format, and the model in PyTorch."""

import importlib
import json
import os
import re
import struct
import sys

# What begins at zero or at one value, and hence says nothing of a mechanism, by how much uniform noise is added.
ALIVE = {r"block\.\d+\.mlp_out": 0.03, "bigram": 0.5, "smear_.*": 0.5, "skip_gate": 0.5,
         r".*\.(value_gate|attention_gate|xsa|injection)": 0.5, r".*_net\.\d\.out": 0.1, r".*_net\.\d\.bias": 1,
         r"block\.\d+\..*_(factors|post|residual|mix)": 0.3, r"skip\.\d+": 0.3, "backout": 0.3,
         r"(.*[._])?\w+_(gain|bias)": 0.3}


def import_torch(test):
    """PyTorch. Without it the test is skipped, but fails where a forge or server runs the tests (CI is set)."""
    try:
        import torch
    except ImportError:
        if os.environ.get("CI"):
            test.fail("needs PyTorch, which jobscripts/test.sh installs (python3-torch)")
        test.skipTest("needs PyTorch")
    torch.set_num_threads(1)
    return torch


def read_header(path):
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8:8 + size]), content[8 + size:]


def write_header(path, header, values):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + values)


def tensors(torch, path):
    """Name -> fp32 tensor."""
    header, values = read_header(path)
    values = torch.frombuffer(bytearray(values), dtype=torch.float32)
    del header["__metadata__"]
    return {name: values[entry["data_offsets"][0] // 4:entry["data_offsets"][1] // 4].view(entry["shape"])
            for name, entry in header.items()}


def make_alive(torch, path, noise=ALIVE):
    """Adds uniform noise to the weights of a file, by pattern of names the bounds, and returns them."""
    header, _ = read_header(path)
    weights = tensors(torch, path)
    torch.manual_seed(1)
    for name, values in weights.items():
        for pattern, bound in noise.items():
            if re.fullmatch(pattern, name):
                values += bound * (2 * torch.rand_like(values) - 1)
    order = sorted(weights, key=lambda name: header[name]["data_offsets"])
    write_header(path, header, b"".join(weights[name].numpy().tobytes() for name in order))
    return weights


def exported_model(directory, weights):
    """As transformers would load it."""
    settings = json.loads((directory / "config.json").read_text())
    sys.path.insert(0, str(directory))
    try:
        configured, modelled = (settings["auto_map"][key].split(".") for key in ("AutoConfig", "AutoModelForCausalLM"))
        config = getattr(importlib.import_module(configured[0]), configured[1])(**settings)
        model = getattr(importlib.import_module(modelled[0]), modelled[1])(config)
    finally:
        sys.path.remove(str(directory))
    model.load_state_dict(weights)
    return model
