"""Invariant: a task answers what transformers answers, and weights that do not fit it are refused in one line."""

from __future__ import annotations

import io
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tiny_transformers as tiny
import torch
from PIL import Image

from app.errors import BadRequest, BadText, TooLarge

from .folders import edit_json
from .task_models import answered, broken, forward, opened, texts, tried

TEXTS = ["the cat sat", "unhappy dogs ran on a mat in paris", "", "a good day , anna ."]


def scores_of(found):
    return {each["label"]: float(each["score"]) for each in found["top"]}


LETTERS = ["a b c", "a b c d e f g a a", "d"]


@pytest.mark.parametrize(
    ("save", "rows"),
    [
        (tiny.save_bert, TEXTS),
        (tiny.save_roberta, LETTERS),
        (tiny.save_gpt2, LETTERS),
    ],
)
def test_text_classification_answers_as_transformers_does(tmp_path, save, rows):
    original = save(tmp_path / "weights")
    model, labels = tried(tmp_path, "text-classification"), original.config.id2label
    assert model.info.inputs[0].bounds == (tiny.MOST,)
    for text, found in zip(rows, answered(model, rows), strict=True):
        expected = forward(original, tmp_path / "weights", text).logits.softmax(-1)[0]
        assert scores_of(found) == pytest.approx(dict(zip(labels.values(), expected.tolist(), strict=True)), rel=1e-4)
        assert found["label"] == labels[int(expected.argmax())] == found["top"][0]["label"]


def test_what_clients_see_of_text_classification(tmp_path):
    tiny.save_bert(tmp_path / "weights")
    model = opened(tmp_path, "text-classification")
    assert [spec.name for spec in model.info.inputs] == ["input_ids", "token_type_ids", "attention_mask"]
    seen = model.front.client_info(model.info)
    tensors = [(spec.name, spec.datatype, spec.shape) for spec in (*seen.inputs, *seen.outputs)]
    assert tensors == [("text", "BYTES", ()), ("labels", "BYTES", (3,)), ("scores", "FP32", (3,))]


def test_weights_in_bf16_compute_in_float32(tmp_path):
    """As BF16 few models of images take what image processors make, and answers depend on the size of a batch."""
    tiny.save_resnet(tmp_path / "weights").bfloat16().save_pretrained(tmp_path / "weights")
    network = tried(tmp_path, "image-classification").call
    assert {weight.dtype for weight in network.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("kind", "function"), [("multi_label_classification", torch.sigmoid), ("regression", torch.clone)]
)
def test_scores_follow_the_kind_of_problem(tmp_path, kind, function):
    original = tiny.save_bert(tmp_path / "weights", problem_type=kind)
    model = opened(tmp_path, "text-classification", "top = 2")
    (found,) = answered(model, TEXTS[:1])
    expected = function(forward(original, tmp_path / "weights", TEXTS[0]).logits)[0].sort(descending=True).values
    assert [float(each["score"]) for each in found["top"]] == pytest.approx(expected.tolist()[:2], rel=1e-4)


def test_an_empty_text_is_read_as_the_token_that_begins_texts(tmp_path):
    """Where the tokenizer has one, and adds nothing by itself; otherwise the message has its row."""
    original = tiny.save_gpt2(tmp_path / "weights")
    with pytest.raises(BadRequest, match=r"^text of row 1: expected at least one token, got 0"):
        answered(opened(tmp_path, "text-classification"), ["a", ""])
    edit_json(tmp_path / "weights" / "tokenizer_config.json", bos_token="<end>")
    found = answered(opened(tmp_path, "text-classification"), ["", "a"])
    for ids, each in zip(([0], [1]), found, strict=True):
        with torch.inference_mode():
            expected = original(torch.tensor([ids])).logits.softmax(dim=-1)
        assert float(each["score"]) == pytest.approx(float(expected.max()), rel=1e-4)


def test_tokens_of_a_long_text_are_those_of_its_windows(tmp_path):
    """Each token is that of the window which shows most around it."""
    original = tiny.save_bert(tmp_path / "weights", "TokenClassification", id2label=tiny.TAGS)
    words = [word for word in tiny.WORDS if word.isalpha()]
    text = " ".join(np.random.default_rng(1).choice(words, 90))
    model = opened(tmp_path, "token-classification")
    short, found, one = answered(model, ["the cat", text, "anna"])
    assert [len(each["tokens"]) for each in (short, found, one)] == [2, 90, 1]
    assert [text[each["start"] : each["end"]] for each in found["tokens"]] == text.split()
    alone = answered(model, [text])[0]
    assert [each["label"] for each in alone["tokens"]] == [each["label"] for each in found["tokens"]]
    room, stride = tiny.MOST - 2, tiny.MOST // 2
    for start in range(0, 90 - stride, room - stride):
        window = " ".join(text.split()[start : start + room])
        logits = forward(original, tmp_path / "weights", window).logits[0, 1:-1].softmax(-1)
        first, last = (start + stride // 2 if start else 0), min(90, start + room) - (stride - stride // 2)
        last = last if start + room < 90 else 90
        for place in range(first, last):
            best = float(logits[place - start].max())
            assert float(found["tokens"][place]["score"]) == pytest.approx(best, rel=1e-4)
    cut = answered(opened(tmp_path, "token-classification", "truncate = true"), [text])[0]
    assert len(cut["tokens"]) == room


def test_image_classification_answers_as_transformers_does(tmp_path):
    original = tiny.save_vit(tmp_path / "weights")
    model = tried(tmp_path, "image-classification")
    files = [tiny.photo(1), tiny.photo(2, (31, 90), "PNG"), gray(np.uint8(77))]
    processor = tiny.pil_processor()
    for file, found in zip(files, answered(model, files), strict=True):
        with torch.inference_mode():
            pixels = processor(Image.open(io.BytesIO(file)).convert("RGB"), return_tensors="pt")
            expected = original(**pixels).logits.softmax(-1)[0].sort(descending=True)
        assert [float(each["score"]) for each in found["top"]] == pytest.approx(expected.values.tolist()[:5], rel=1e-4)
        assert [each["label"] for each in found["top"]] == [f"class {n}" for n in expected.indices.tolist()[:5]]
    (deep,) = answered(model, [gray(np.uint16(77 * 257))])  # the last image in 16 bits
    assert scores_of(deep) == pytest.approx(scores_of(found), rel=1e-4)


def gray(value):
    out = io.BytesIO()
    Image.fromarray(np.full((20, 20), value)).save(out, "PNG")
    return out.getvalue()


def test_images_that_cannot_be_read(tmp_path, monkeypatch):
    tiny.save_vit(tmp_path / "weights")
    front = opened(tmp_path, "image-classification").front
    monkeypatch.setattr("app.models.tasks.images.MAX_PIXELS", 1999)
    with pytest.raises(TooLarge, match="image: expected at most 1999 pixels, got 50 x 40"):
        front.reader.read([[texts([tiny.photo()])]])
    for data in (b"", b"no image", tiny.photo(size=(20, 20))[:300]):
        with pytest.raises(BadRequest, match="image: expected a readable PNG or JPEG or GIF"):
            front.reader.read([[texts([data])]])


# texts


def test_texts_that_do_not_fit(tmp_path):
    tiny.save_bert(tmp_path / "weights")
    front = opened(tmp_path, "text-classification", "max_tokens = 6").front
    for given, message in (
        (["a cat", "a cat sat on a", "a"], "text of row 1: expected at most 6 tokens, got 7$"),
        ([b"a \xff"], "text: expected UTF-8, got byte 0xff"),
        (["a " * 10_000], "text: expected at most 6 tokens, got 20000 characters"),
        (["a", *["a " * 300] * 9], "text of row 1: expected at most 6 tokens, got 600 characters"),
    ):
        with pytest.raises(BadText, match=message) as raised:
            front.reader.read([[texts(given)]])
        assert (raised.value.code == "context_length_exceeded") == ("at most" in message)  # which agents look for
    cut = opened(tmp_path, "text-classification", "max_tokens = 6\ntruncate = true").front
    one, read = cut.reader.read([[texts(["a " * 10_000])], [texts(["a cat", "a cat sat on a"])]])
    assert one.arrays[0].tolist() == [[2, 15, 15, 15, 15, 3]]
    assert read.arrays[0].tolist() == [[2, 15, 5, 3, 0, 0], [2, 15, 5, 7, 9, 3]]
    assert (read.lengths, read.own_lengths) == ({"tokens": 6}, {"tokens": [4, 6]})


def test_threads_may_read_at_once(tmp_path):
    """transformers' own call of a tokenizer must not be made by two threads at once."""
    tiny.save_bert(tmp_path / "weights")
    front = opened(tmp_path, "text-classification", "truncate = true").front
    rows = [texts([text * count]) for text in TEXTS for count in range(1, 12)]
    expected = [read.arrays[0].tolist() for read in front.reader.read([[row] for row in rows])]
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda row: front.reader.read([[row]])[0].arrays[0].tolist(), rows * 5)
        assert list(found) == expected * 5


# what is wrong


def config_with(**changes):
    return lambda weights: edit_json(weights / "config.json", **changes)


def without_a_head(weights):
    tiny.save_bert(weights, "")
    edit_json(weights / "config.json", architectures=["BertForSequenceClassification"])


def pickled_whole(weights):
    model = tiny.save_bert(weights)
    (weights / "model.safetensors").unlink()
    torch.save(model, weights / "pytorch_model.bin")


def with_code(weights):
    edit_json(weights / "config.json", model_type="odd", auto_map={"AutoConfig": "odd.Odd"})
    (weights / "odd.py").write_text(f"open({str(weights / 'ran')!r}, 'w')")


def without_a_tokenizer(weights):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (weights / name).unlink()


LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 123\n"


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (
            without_a_head,
            "task: expected weights with all of a model for 'text-classification', got none for classifier.",
        ),
        # by transformers' own message one would read a report that is shown nowhere
        (
            config_with(id2label={"0": "a", "1": "b"}),
            "expected classifier.bias of [2], as config.json says, got [3] in the weights",
        ),
        (
            config_with(id2label={"1": "a", "2": "b", "3": "c"}),
            "config.json: id2label: expected labels of 0 to 2, got those of 1, 2, 3",
        ),
        (
            pickled_whole,
            "expected safetensors or a state dict of plain tensors, got a pickle of something else: write it "
            "by save_pretrained",
        ),
        # without peft transformers serves the model that the adapter is for
        (
            lambda weights: edit_json(weights / "adapter_config.json"),
            "adapter_config.json: an adapter is not applied: save the whole model",
        ),
        (lambda weights: (weights / "model.safetensors").write_text(LFS_POINTER), "`git lfs pull` fetches them"),
        (without_a_tokenizer, "expected a tokenizer (tokenizer.json) beside the weights in "),
        (
            lambda weights: tiny.save_tokenizer(weights, words=[*tiny.WORDS, "more"]),
            "expected a tokenizer of at most the 25 tokens that the model knows, got 26",
        ),
        (
            with_code,
            "code from a hub never runs here: build the network in a model.py, by code that you have read",
        ),
    ],
)
def test_weights_that_cannot_be_served_say_why(tmp_path, spoil, told):
    weights = tmp_path / "weights"
    tiny.save_bert(weights)
    spoil(weights)
    assert told in broken(tmp_path, "text-classification")
    assert not (weights / "ran").exists()


def test_weights_of_another_task(tmp_path):
    tiny.save_bert(tmp_path / "weights")
    for task, head in (
        ("token-classification", "TokenClassification"),
        ("image-classification", "ImageClassification"),
    ):
        expected = f"weights of a model For{head} for {task!r}, got those of BertForSequenceClassification"
        assert broken(tmp_path, task) == f"task: expected {expected}"
    edit_json(tmp_path / "weights" / "config.json", architectures=["BertForTokenClassification"])
    assert opened(tmp_path, "token-classification")  # its head is there under the same name


def test_a_missing_image_processor(tmp_path):
    tiny.save_vit(tmp_path / "weights", processor=False)
    told = broken(tmp_path, "image-classification")
    assert told.startswith("expected an image processor (preprocessor_config.json) beside the weights in ")
    edit_json(tmp_path / "weights" / "preprocessor_config.json", image_processor_type="Odd")
    told = broken(tmp_path, "image-classification")
    assert "Unrecognized image processor" in told
    assert len(told) < 600


@pytest.mark.parametrize(
    ("task", "options", "more", "message"),
    [
        ("text-classification", "max_tokens = 33", "", "task_options.max_tokens: expected at most the model's 32 "),
        ("text-classification", 'pooling = "cls"', "", "task_options.pooling: expected one of max_tokens, pairs"),
        ("speech", "", "", "task: expected one of text-classification, "),
        ("rerank", "", "", "task: expected weights with one label for 'rerank', got 3"),
        ("text-classification", "", 'weights = "a"', "weights: expected none beside the task 'text-classification'"),
        ("text-classification", "", "kwargs = { trust_remote_code = true }", "kwargs.trust_remote_code: not accepted"),
        (
            "text-classification",
            "",
            "kwargs = { ignore_mismatched_sizes = true, num_labels = 2 }",
            "expected classifier.bias of [2], as config.json says, got [3] in the weights",
        ),
    ],
)
def test_what_model_toml_may_not_say(tmp_path, task, options, more, message):
    tiny.save_bert(tmp_path / "weights")
    assert broken(tmp_path, task, options, more).startswith(message)


def test_fronts_have_an_example_that_they_read(tmp_path):
    """The owner's first row, or one that is made up; short enough to be typed."""
    tiny.save_bert(tmp_path / "text" / "weights")
    tiny.save_gpt2(tmp_path / "letters" / "weights")
    tiny.save_vit(tmp_path / "image" / "weights")
    for name, kind in (("text", "text"), ("letters", "text"), ("image", "image")):
        model = opened(tmp_path / name, f"{kind}-classification")
        (value,) = model.front.example.arrays
        assert value.shape == ()
        assert len(value.item()) < 120
        assert len(model.front.reader.read([[value]])[0].arrays[0]) == 1
    short = opened(tmp_path / "text", "text-classification", "max_tokens = 4")
    assert short.front.example.arrays[0].item() == b"What a"
    rows = {"inputs": [{"name": "text", "shape": [2], "data": ["the cat", "a dog"]}]}
    (tmp_path / "text" / "rows.json").write_text(json.dumps(rows))
    own = opened(tmp_path / "text", "text-classification", more='[warmup]\nfile = "rows.json"')
    assert own.front.example.arrays[0].item() == b"the cat"
