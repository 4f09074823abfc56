"""What servers of transformers' models import besides: as `preloaded`, where tests of this run use the library."""

import gc
import importlib

for name in ("bert", "gpt2", "vit"):
    importlib.import_module(f"transformers.models.{name}.modeling_{name}")
importlib.import_module("transformers.models.vit.image_processing_pil_vit")
gc.collect()
gc.freeze()
