"""What nanorun exports, as tests read it: weights in the safetensors format, and the model in PyTorch."""

import importlib
import json
import struct
import sys


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
