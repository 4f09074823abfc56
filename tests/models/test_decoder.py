"""Decoders: what they refuse, what generation_config.json changes, the check of their rows, packed layers, sampling."""

from __future__ import annotations

import gc
import random
import weakref
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import transformers
from torch import nn
from transformers.generation import logits_process as processors
from transformers.pytorch_utils import Conv1D

from app.contract import Stages
from app.errors import ConfigError
from app.machine import resident_bytes
from app.models import packed_weights
from app.models.checks.calling import call_directly
from app.models.checks.row_check import tolerance_of
from app.models.checks.segment_check import check_segments
from app.models.checks.segments import whole_model
from app.models.checks.trial import check_independence, network_warning
from app.models.decoders import slabs
from app.models.decoders.decoder import DecoderModel
from app.models.decoders.detokenizer import Detokenizer
from app.models.decoders.parameters import Bounds, probabilities
from app.models.decoders.slabs import Slab, SlabShape
from app.models.decoders.texts import TextDecoder
from app.models.packed_weights import PackedLinear, pack
from tests import tiny_decoders

from .folders import edit_json, loaded
from .task_models import texts

# What a decoder refuses when it is loaded, and what generation_config.json changes of its texts.
# Others of its texts are tested in tests/engine/cpu/test_decoding.py.


def test_places_that_no_row_has_had_take_no_memory():
    before = resident_bytes()
    shape = SlabShape(transformers.GPT2Config(n_layer=4, n_head=8, n_embd=512), torch.bfloat16)
    slab = Slab(shape, places=256, columns=256)
    assert slab.values.nbytes == 512 << 20
    slab.values[:, :, 0] = 1
    assert resident_bytes() - before < 64 << 20
    assert not slab.values[:, :, 1:3].any()


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("model_type", "bart", "expected a decoder of t5, marian, gpt2, llama, mistral, qwen2, got bart"),
        ("sliding_window", 64, "expected attention without a sliding window, got 64"),
        ("rope_parameters", DYNAMIC, "expected positions that no other row changes, got rope_type 'dynamic'"),
    ],
)
def test_a_model_that_cannot_run_so_is_refused(name, value, message):
    model = tiny_decoders.model("llama")
    for config in (model.config, model.generation_config):
        setattr(config, name, value)
    with pytest.raises(ConfigError, match=f"^{message}$"):
        DecoderModel(model)


@pytest.mark.parametrize("kind", tiny_decoders.KINDS)
@pytest.mark.parametrize(("call", "own", "read"), [(150, [[4], [41], [9]], [[30], [2], [12]]), (10**6, [[41]], [[30]])])
def test_a_row_reads_its_own_columns_where_that_costs_less(kind, call, own, read, monkeypatch):
    monkeypatch.setattr(slabs, "_CALL", call)
    if kind == "t5" and tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 20):
        own, read = [[41]], [[30]]  # that release passes no columns on to the attention of T5
    columns = []
    real = torch.nn.functional.scaled_dot_product_attention

    def attend(query, key, *given, **named):
        columns.append([key.shape[2]])
        return real(query, key, *given, **named)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    decoder = DecoderModel(tiny_decoders.model(kind))
    cache = decoder.cache(decoder.slab(3, 60), decoder.slab(3, 30) if decoder.encodes else None)
    with torch.inference_mode():
        decoder.step(torch.tensor([5, 6, 7]), cache, 50, [3, 40, 8], [30, 2, 12] if decoder.encodes else [0, 0, 0])
    assert columns == 2 * [*own, *(read if decoder.encodes else [])]  # two layers


def decoder_of(model, most):
    words = tiny_decoders.tokenizer()
    decoder = DecoderModel(model)
    both = None if decoder.encodes else 60 + most
    return TextDecoder(decoder, Detokenizer(words, words.backend_tokenizer), Bounds(60, most, both, most))


ENDS = [1, 188, *range(60, 90)]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("t5", {"begin_suppress_tokens": list(range(2, 150)), "forced_bos_token_id": 50}),
        ("t5", {"begin_suppress_tokens": list(range(2, 150)), "forced_eos_token_id": 1, "suppress_tokens": [195]}),
        ("gpt2", {"min_length": 12, "min_new_tokens": 3, "eos_token_id": ENDS}),
        ("gpt2", {"min_length": 12, "eos_token_id": ENDS, "repetition_penalty": 1.7}),
        ("llama", {"bad_words_ids": [[5], [70, 71]], "no_repeat_ngram_size": 2, "eos_token_id": ENDS}),
    ],
)
def test_what_generation_config_says_is_done_as_generate_does_it(kind, settings):
    random.seed(0)
    rows, most = [random.choices(range(2, 200), k=length) for length in (13, 4, 9, 17, 2)], 16
    model = tiny_decoders.model(kind)
    usual = [tiny_decoders.generated(model, ids, most) for ids in rows]
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    expected = [tiny_decoders.generated(model, ids, most) for ids in rows]
    assert expected != usual
    decoder = decoder_of(model, most)
    for ids, wanted in zip(rows, expected, strict=True):
        with torch.inference_mode():
            (text,) = decoder.start_all(torch.tensor([ids]), [len(ids)], [{}])
            decoder.write([text], decoder.decoder.begin(torch.tensor([ids]), [len(ids)]))
        assert text.ids[-text.tokens :] == wanted


@pytest.mark.parametrize(("name", "value"), [("stop_strings", ["."]), ("sequence_bias", [[[7], 5.0]])])
def test_what_generation_config_asks_for_that_is_not_offered_is_refused_by_name(name, value):
    model = tiny_decoders.model("gpt2")
    setattr(model.generation_config, name, value)
    with pytest.raises(ConfigError, match=rf"^generation_config.json: {name} is not offered, got "):
        decoder_of(model, 16)


# A decoder whose rows depend on others that begin and end beside them is refused before it serves.


def spoiled(folder, kind, spoil):
    tiny_decoders.save(folder, kind)
    model = loaded(folder)
    spoil(model.call.decoder.model)
    return model


def with_positions_of_the_longest(model):
    """As a model has them that takes them from the width of its batch."""

    def positions(_, given):
        return given[0].amax(0, keepdim=True).expand_as(given[0])

    model.transformer.wpe.register_forward_pre_hook(positions)


def without_a_mask(model):
    def seen(_, args, given):
        return args, {**given, "attention_mask": None}

    model.model.register_forward_pre_hook(seen, with_kwargs=True)


def checked(model):
    return check_independence(model, call_directly(model))


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        *((kind, 20) for kind in tiny_decoders.KINDS),
        ("gpt2", tiny_decoders.POSITIONS - 1),
        ("t5", 1),
    ],
)
def test_a_decoder_whose_rows_are_independent_passes(kind, most, tmp_path):
    """With rows that fit the positions of the model."""
    tiny_decoders.save(tmp_path, kind, most)
    assert checked(loaded(tmp_path)) is None


def test_one_that_is_wrong_only_where_rows_join_others_is_refused(tmp_path):
    model = spoiled(tmp_path, "gpt2", with_positions_of_the_longest)
    alike = [row for row in model.checks.samples if row.lengths == model.checks.samples[0].lengths]
    whole = whole_model(model.info, alike, call_directly(model))
    assert check_segments(whole, tolerance_of(model), model.info.batching.max_batch) is None, "in batches it is right"
    with pytest.raises(ConfigError, match="a row writes depends on its company") as caught:
        checked(model)
    for part in ("by its own forward", "beside", "its positions must be those"):
        assert part in str(caught.value)
    assert "depends on its company" in str(checked(replace(model, checks=replace(model.checks, row_check="warn"))))
    assert checked(replace(model, checks=replace(model.checks, row_check="off"))) is None


def test_one_that_reads_what_its_mask_hides_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="a row writes depends on its company"):
        checked(spoiled(tmp_path, "llama", without_a_mask))


@pytest.mark.parametrize(("kwargs", "dtype"), [("", torch.float32), ('kwargs.dtype = "bfloat16"', torch.bfloat16)])
def test_weights_in_bf16_compute_in_float32_unless_asked_otherwise(kwargs, dtype, tmp_path):
    """In BF16 products round by the size of the batch, so what is written would depend on strangers."""
    tiny_decoders.save(tmp_path, "llama").bfloat16().save_pretrained(tmp_path / "weights")
    described = tmp_path / "model.toml"
    described.write_text(f"{kwargs}\n{described.read_text()}")
    assert {weight.dtype for weight in loaded(tmp_path).call.parameters()} == {dtype}


def test_that_a_model_asks_for_several_beams_is_noted(tmp_path):
    model = tiny_decoders.save(tmp_path, "marian")
    assert not loaded(tmp_path).note
    model.generation_config.num_beams = 4
    model.save_pretrained(tmp_path / "weights")
    assert "num_beams is 4, but texts are written by one beam" in loaded(tmp_path).note


def test_the_prefix_of_a_t5_is_put_before_each_text(tmp_path):
    tiny_decoders.save(tmp_path, "t5")
    tasks = {"translation_en_to_de": {"prefix": "de: "}, "summarization": {"prefix": "sum: "}}
    edit_json(tmp_path / "weights" / "config.json", task_specific_params=tasks)
    (read,) = loaded(tmp_path).front.reader.read([[texts(["ab"])]])
    assert read.arrays[0].tolist() == [tiny_decoders.tokenizer()("de: ab").input_ids]


# Packed layers of decoders give what the plain ones do.


@pytest.mark.parametrize("layer", [nn.Linear(24, 40), nn.Linear(24, 40, bias=False), Conv1D(40, 24)])
@pytest.mark.parametrize("shape", [(1, 24), (7, 24), (3, 5, 24)])
def test_a_packed_layer_gives_what_the_plain_one_does(layer, shape):
    x = torch.randn(shape)
    with torch.inference_mode():
        torch.testing.assert_close(PackedLinear(layer, shared=False)(x), layer(x))


@pytest.fixture
def of_any_size(monkeypatch):
    """Small layers are packed, too."""
    monkeypatch.setattr(packed_weights, "LEAST_TO_PACK", 1)


def packed(model, kinds=PackedLinear):
    """The layers of these kinds after packing."""
    pack(model)
    return [layer for layer in model.modules() if isinstance(layer, kinds)]


def test_small_layers_are_not_packed():
    assert packed(tiny_decoders.model("t5")) == []


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize("kind", tiny_decoders.KINDS)
def test_all_float32_layers_are_packed(kind):
    assert packed(tiny_decoders.model(kind).double()) == []
    assert packed(tiny_decoders.model(kind), nn.Linear | Conv1D) == []


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize("kind", tiny_decoders.KINDS)
def test_the_weight_of_a_packed_layer_is_kept_for_embeddings_alone(kind):
    """Two copies of all weights are more than a container's limit is reckoned with."""
    model = tiny_decoders.model(kind)
    shapes = {name: (value.shape, value.dtype) for name, value in model.named_parameters()}
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear | Conv1D)]
    freed = [weakref.ref(layer.weight) for layer in linear]
    read = {id(layer.weight) for layer in model.modules() if isinstance(layer, nn.Embedding)}
    tied = sum(id(layer.weight) in read for layer in linear)
    del linear
    pack(model)
    gc.collect()
    assert sum(one() is not None for one in freed) == tied
    assert {name: (value.shape, value.dtype) for name, value in model.named_parameters()} == shapes


@pytest.mark.usefixtures("of_any_size")
def test_weights_that_hold_nan_are_not_packed():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with torch.no_grad():
        model[0].weight[1, 2] = torch.nan
    assert packed(model) == [model[1]]
    served = SimpleNamespace(info=None, stages=Stages(), call=model)
    assert network_warning(served) == "weight '0.weight' holds NaN: answers that depend on it are NaN"


@pytest.mark.usefixtures("of_any_size")
def test_a_processor_that_cannot_pack_leaves_the_model_as_it_is(monkeypatch):
    monkeypatch.setattr(packed_weights, "PackedProduct", Mock(side_effect=RuntimeError("not on this processor")))
    assert packed(tiny_decoders.model("t5")) == []


# How likely tokens are in a sample: as transformers' own processors of logits say.


WORDS = 600


WARPERS = {
    "temperature": processors.TemperatureLogitsWarper,
    "top_k": processors.TopKLogitsWarper,
    "top_p": processors.TopPLogitsWarper,
}


@pytest.mark.parametrize(
    "asked", [{}, {"temperature": 0.6}, {"top_k": 7}, {"top_p": 0.9}, {"temperature": 1.7, "top_k": 40, "top_p": 0.5}]
)
@pytest.mark.parametrize("spread", [0.0, 0.1, 3.0, 40.0])
def test_probabilities_are_those_of_transformers(asked, spread):
    torch.manual_seed(1)
    scores = (spread * torch.randn(WORDS) + torch.linspace(0, 1e-3, WORDS)).double()  # no two alike
    found, expected = probabilities(scores, **asked), scores[None]
    for name, value in asked.items():
        expected = WARPERS[name](value)(torch.zeros((1, 1), dtype=torch.long), expected)
    torch.testing.assert_close(found / found.sum(), torch.softmax(expected[0], 0))


@pytest.mark.parametrize("temperature", [1e-5, 1e-37, 1e-40, 1e-46, 1e-300, 5e-324])
@pytest.mark.parametrize("top", [{}, {"top_k": 5, "top_p": 0.9}])
def test_a_tiny_temperature_leaves_the_likeliest_token(temperature, top):
    torch.manual_seed(2)
    for spread in (1e-3, 30.0, 1e30):
        scores = spread * torch.randn(WORDS)
        scores[:3] = -torch.inf
        found = probabilities(scores, temperature, **top)
        assert found.isfinite().all()
        if temperature < 1e-5:
            assert found.nonzero()[:, 0].tolist() == [scores.argmax()]


def test_one_token_is_left_however_small_top_p_is():
    for scores in (torch.zeros(WORDS), torch.randn(WORDS)):
        for top_p in (0.0, 1e-300, 1e-9):
            assert probabilities(scores, top_p=top_p).count_nonzero() == 1
