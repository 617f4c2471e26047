"""Configuration of a model that nanorun has exported, for Hugging Face's transformers."""

try:
    from transformers import PretrainedConfig
except ImportError:
    class PretrainedConfig:
        """Keeps what it is given."""

        def __init__(self, **values):
            self.__dict__.update(values)


class NanorunConfig(PretrainedConfig):
    """`model` and `window` hold the keys of these sections of nanorun's deck, `stage` the windows where the deck has
    stages, and `data` the length of the rows where attention stays within rows; the windows are those that training
    ended with. docs/keys.md of nanorun describes them."""

    model_type = "nanorun"

    def __init__(self, model=None, window=None, stage=None, data=None, **values):
        self.model = model or {}
        self.window = window or {}
        self.stage = stage or []
        self.data = data or {}
        super().__init__(**values)
