"""Files of weights in the safetensors format. Standard library only."""

import json
import struct


def read_header(path):
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8:8 + size]), content[8 + size:]


def write_header(path, header, values):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + values)
