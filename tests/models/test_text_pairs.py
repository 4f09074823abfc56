"""Tasks of pairs, masks and vectors: each row is answered as transformers or sentence-transformers does alone."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tiny_transformers as tiny
import torch
import transformers
from safetensors.torch import save_file

from app.contract import TextCut
from app.errors import BadRequest, ConfigError
from app.models.tasks.tokenizing import encode_cut

from .folders import edit_json, loaded, write_model
from .task_models import answered, broken, forward, opened, pipeline_of, texts, toml, tried, vector_of

# Invariant: tasks of pairs, of several texts and of masks answer what transformers answers for each row alone.


FIRST = ["the cat sat", "unhappy dogs ran on a mat in paris", "a good day , anna ."]
SECOND = ["a dog ran in paris", "the cat", "bad"]
NLI = {0: "contradiction", 1: "neutral", 2: "entailment"}
ONE_LABEL = {0: "LABEL_0"}
CLASSIFIED, HEAD = "text-classification", "cls.predictions"
SENTENCES = "config_sentence_transformers.json"


def test_pairs_are_classified(tmp_path):
    original = tiny.save_bert(tmp_path / "weights", id2label=NLI)
    model = tried(tmp_path, CLASSIFIED, "pairs = true")
    for first, second, found in zip(FIRST, SECOND, answered(model, FIRST, SECOND), strict=True):
        expected = forward(original, tmp_path / "weights", first, second).logits[0].softmax(-1)
        scores = {each["label"]: float(each["score"]) for each in found["top"]}
        assert scores == pytest.approx(dict(zip(NLI.values(), expected.tolist(), strict=True)), rel=1e-4)


TANH = {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}
PROMPT = {"prompts": {"query": "a dog ran , "}, "default_prompt_name": "query"}


@pytest.mark.parametrize(
    ("file", "said", "function", "prompt"),
    [
        ("config.json", {}, torch.sigmoid, ""),
        ("config.json", TANH, torch.tanh, ""),
        (SENTENCES, PROMPT, torch.sigmoid, "a dog ran , "),
    ],
    ids=["sigmoid", "tanh", "prompt"],
)
def test_texts_are_ranked_as_their_folder_says(tmp_path, file, said, function, prompt):
    original = tiny.save_bert(tmp_path / "weights", id2label=ONE_LABEL)
    edit_json(tmp_path / "weights" / file, **said)
    model = tried(tmp_path, "rerank")
    for first, second, found in zip(FIRST, SECOND, answered(model, FIRST, SECOND), strict=True):
        raw = forward(original, tmp_path / "weights", prompt + first, second).logits[0, 0]
        scores = (float(found["raw_score"]), float(found["score"]))
        assert scores == pytest.approx((float(raw), float(function(raw))), rel=1e-4)


@pytest.mark.parametrize("top", [5, 2])
def test_masks_are_filled_as_the_pipeline_fills_them(tmp_path, top):
    original = tiny.save_bert(tmp_path / "weights", "MaskedLM")
    model = tried(tmp_path, "fill-mask", f"top = {top}")
    assert b"[MASK]" in model.front.example.arrays[0].item()
    pipeline = pipeline_of(original, tmp_path / "weights", "fill-mask", top_k=top)
    rows = ["the [MASK] sat on the mat", "[MASK] [MASK] in paris"]
    for row, found in zip(rows, answered(model, rows), strict=True):
        expected = pipeline(row)
        masks = [expected] if isinstance(expected[0], dict) else expected
        for wanted, mask in zip(masks, found["masks"], strict=True):
            assert [each["token"] for each in mask["top"]] == [each["token_str"] for each in wanted]
            scores = [float(each["score"]) for each in mask["top"]]
            assert scores == pytest.approx([each["score"] for each in wanted], rel=1e-4)


def test_a_model_that_fills_masks_by_what_pads_its_rows_is_refused(tmp_path):
    """Its mixing layers know no mask of attention. Rows without a mask to fill would not show that."""
    sizes = {"vocab_size": len(tiny.WORDS), "max_position_embeddings": tiny.MOST, "type_vocab_size": 2}
    made = transformers.FNetConfig(**tiny.SMALL, **sizes)
    transformers.FNetForMaskedLM(made).save_pretrained(tmp_path / "weights")
    tiny.save_tokenizer(tmp_path / "weights")
    with pytest.raises(ConfigError, match="Padding must not reach a row's answer"):
        tried(tmp_path, "fill-mask")


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("labels", [["a cat", "paris", "happy"], ["bad"]])
def test_given_labels_are_scored_as_the_pipeline_scores_them(tmp_path, several, labels):
    original = tiny.save_bert(tmp_path / "weights", id2label=NLI)
    options = f'hypothesis_template = "a day in {{}}"\nmulti_label = {str(several).lower()}'
    model = tried(tmp_path, "zero-shot-classification", options)
    pipeline = pipeline_of(original, tmp_path / "weights", "zero-shot-classification")
    for text, found in zip(FIRST, answered(model, FIRST, [labels] * len(FIRST)), strict=True):
        expected = pipeline(text, labels, hypothesis_template="a day in {}", multi_label=several)
        assert [each["label"] for each in found["top"]] == expected["labels"]
        assert [float(each["score"]) for each in found["top"]] == pytest.approx(expected["scores"], rel=1e-4)


def expected_answer(original, folder, question, context, most):
    """The best span over all windows of `most` tokens: its words, and the product of both probabilities."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    windows = tokenizer(
        question, context, truncation="only_second", max_length=most, stride=most // 2,
        return_overflowing_tokens=True, return_offsets_mapping=True,
    )  # fmt: skip
    best = ("", -1.0)
    for n in range(len(windows["input_ids"])):
        given = {name: torch.tensor([windows[name][n]]) for name in ("input_ids", "token_type_ids", "attention_mask")}
        with torch.inference_mode():
            found = original(**given)
        own = torch.tensor([sequence == 1 for sequence in windows.sequence_ids(n)])
        seen = own.clone()
        seen[0] = True  # the first token: no answer
        start, end = (
            logits[0].masked_fill(~seen, -10_000.0).softmax(-1) for logits in (found.start_logits, found.end_logits)
        )
        for first in own.nonzero().flatten().tolist():
            for last in range(first, min(first + 15, len(own))):
                score = float(start[first] * end[last])
                if own[last] and score > best[1]:
                    words = [windows.word_ids(n)[first], windows.word_ids(n)[last]]
                    spans = [windows.word_to_chars(n, word, sequence_index=1) for word in words]
                    best = (context[spans[0].start : spans[1].end], score)
    return best


def test_questions_are_answered_by_the_best_span_of_all_windows(tmp_path):
    original = tiny.save_bert(tmp_path / "weights", "QuestionAnswering", id2label={0: "start", 1: "end"})
    model = tried(tmp_path, "question-answering", "max_tokens = 16")
    questions = ["the cat", "anna sat in"]
    contexts = ["unhappy dogs ran on a mat . " * 6 + "anna sat in paris", "a good day"]
    (read,) = model.front.reader.read([[texts(questions), texts(contexts)]])
    assert len(read.arrays[0]) == len(read.own_lengths["tokens"]) > 5
    for question, context, found in zip(questions, contexts, answered(model, questions, contexts), strict=True):
        answer, score = expected_answer(original, tmp_path / "weights", question, context, 16)
        assert (found["answer"], float(found["score"])) == (answer.encode(), pytest.approx(score, rel=1e-4))
        assert context[found["start"] : found["end"]] == answer


@pytest.mark.parametrize(
    ("task", "kind", "columns", "message"),
    [
        (
            "rerank",
            "SequenceClassification",
            (["a", "a"], ["a", "a " * 9]),
            "query and document of row 1: expected at ",
        ),
        ("fill-mask", "MaskedLM", (["a cat"],), "text: expected 1 to 16 masks, got 0"),
        ("question-answering", "QuestionAnswering", (["a a"], ["a"]), "question: expected at most 1 tokens, got 2"),
        ("sentence-similarity", "", (["a"], [["a", "a " * 9]]), r"sentences\[1\]: expected at most 10 tokens, got 11"),
        ("sentence-similarity", "", (["a " * 9], [["a"]]), "source_sentence: expected at most 10 tokens, got 11"),
        (
            "sentence-similarity",
            "",
            (["a", "a"], [["a", "a"], [b"\xff", "a"]]),
            r"sentences\[0\] of row 1: expected UTF-8, got byte 0xff",
        ),
    ],
)
def test_texts_that_do_not_fit_are_named(tmp_path, task, kind, columns, message):
    tiny.save_bert(tmp_path / "weights", kind, id2label=ONE_LABEL)
    front = opened(tmp_path, task, "max_tokens = 10").front
    with pytest.raises(BadRequest, match=f"^{message}"):
        front.reader.read([[texts(column) for column in columns]])


def test_rows_of_a_file_may_be_several_of_the_model(tmp_path):
    tiny.save_bert(tmp_path / "weights", id2label=NLI)
    inputs = [
        {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["the cat"]},
        {"name": "candidate_labels", "shape": [1, 2], "datatype": "BYTES", "data": ["happy", "a good day"]},
    ]
    (tmp_path / "rows.json").write_text(json.dumps({"inputs": inputs}))
    model = opened(tmp_path, "zero-shot-classification", more='warmup = { file = "rows.json" }')
    first, second = model.checks.samples
    assert all(row.lengths["tokens"] == len(row.arrays[0]) for row in (first, second))
    assert np.array_equal(model.front.example.arrays[1], np.array([b"happy", b"a good day"], object))


def test_models_may_be_opened_at_once(tmp_path):
    """Tied weights stay tied: transformers replaces a method of all its models while it loads one."""
    tiny.save_bert(tmp_path / "a" / "weights", "MaskedLM")
    tiny.save_bert(tmp_path / "b" / "weights")
    folders = [write_model(tmp_path / name, toml(task), None) for name, task in (("a", "fill-mask"), ("b", CLASSIFIED))]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(loaded, folders * 3))
    tied = [model.call.model.state_dict() for model in found[::2]]
    assert all(torch.equal(one[f"{HEAD}.decoder.bias"], one[f"{HEAD}.bias"]) for one in tied)


# Invariant: vectors are made as the files of sentence-transformers say, and compared as their users do.


TEXTS = ["the cat sat", "unhappy dogs ran on a mat in paris", "a good day , anna ."]
MODELS = "sentence_transformers.models"


def write_steps(weights, pooling, *kinds):
    """modules.json with these steps behind the transformer, and their files; a dense layer of 16 to 4 values."""
    steps = [{"path": "", "type": f"{MODELS}.Transformer"}]
    steps += [{"path": f"{n}_{kind}", "type": f"{MODELS}.{kind}"} for n, kind in enumerate(("Pooling", *kinds), 1)]
    (weights / "modules.json").write_text(json.dumps(steps))
    dense = {"in_features": 16, "out_features": 4, "activation_function": "torch.nn.modules.activation.Tanh"}
    for step, config in zip(steps[1:], [pooling] + [dense] * len(kinds), strict=True):
        (weights / step["path"]).mkdir()
        edit_json(weights / step["path"] / "config.json", **config)
    if "Dense" in kinds:
        weight, bias = dense_layer()
        save_file({"linear.weight": weight, "linear.bias": bias}, weights / "2_Dense" / "model.safetensors")


def dense_layer():
    made = torch.Generator().manual_seed(1)
    return torch.randn(4, 16, generator=made), torch.randn(4, generator=made)


OLD_CLS = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False, "word_embedding_dimension": 16}


@pytest.mark.parametrize(
    ("pooling", "pooled", "kinds"),
    [
        (OLD_CLS, lambda hidden: hidden[0], ("Normalize",)),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}, lambda hidden: hidden.mean(dim=0), ()),
        ({"embedding_dimension": 16, "pooling_mode": "lasttoken"}, lambda hidden: hidden[-1], ("Normalize",)),
        (
            {"embedding_dimension": 16, "pooling_mode": ["mean"]},
            lambda hidden: hidden.mean(dim=0),
            ("Dense", "Normalize"),
        ),
    ],
)
def test_the_steps_that_the_folder_lists(tmp_path, pooling, pooled, kinds):
    weights = tmp_path / "weights"
    original = tiny.save_bert(weights, "")
    write_steps(weights, pooling, *kinds)
    model = tried(tmp_path, "feature-extraction")
    for text, found in zip(TEXTS, answered(model, TEXTS), strict=True):
        expected = pooled(forward(original, weights, text).last_hidden_state[0])
        if "Dense" in kinds:
            weight, bias = dense_layer()
            expected = torch.tanh(weight @ expected + bias)
        if "Normalize" in kinds:
            expected = expected / expected.norm()
        assert_vector(found, expected)


def assert_vector(found, expected):
    assert np.allclose(found["embedding"], expected.numpy(), atol=1e-4)


def test_the_default_prompt_is_put_before_each_text(tmp_path):
    original = tiny.save_bert(tmp_path / "weights", "")
    edit_json(tmp_path / "weights" / SENTENCES, **PROMPT)
    for options, prompt in (("", "a dog ran , "), ('prompt = ""', ""), ('prompt = "good "', "good ")):
        (found,) = answered(opened(tmp_path, "feature-extraction", options), TEXTS[:1])
        assert_vector(found, vector_of(original, tmp_path / "weights", prompt + TEXTS[0]))


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_the_file_of_the_transformer_is_followed_by_each_of_its_names(tmp_path, kind):
    """Texts are in lower case for it, also where the tokenizer knows capitals."""
    weights = tmp_path / "weights"
    original = tiny.save_bert(weights, "")
    file = weights / "tokenizer.json"
    file.write_text(file.read_text().replace('"lowercase": true', '"lowercase": false'))
    edit_json(weights / f"sentence_{kind}_config.json", max_seq_length=9, do_lower_case=True)
    model = opened(tmp_path, "feature-extraction")
    assert model.info.inputs[0].bounds == (9,)
    (found,) = answered(model, ["The CAT sat"])
    assert_vector(found, vector_of(original, weights, "the cat sat"))


def test_a_prompt_that_the_pooling_would_leave_out_is_refused(tmp_path):
    tiny.save_bert(tmp_path / "weights", "")
    write_steps(tmp_path / "weights", {"include_prompt": False})  # the mean, as no file says another
    assert opened(tmp_path, "feature-extraction")
    told = "task_options.prompt: expected none, as 1_Pooling/config.json leaves it out of the pooling"
    assert broken(tmp_path, "feature-extraction", 'prompt = "good "').startswith(told)


def test_the_encoder_of_t5_makes_vectors(tmp_path):
    """Whether its folder says that there is a decoder, as old ones do, or not. A dense layer may be a state dict."""
    weights = tmp_path / "weights"
    made = transformers.T5Config(
        vocab_size=len(tiny.WORDS), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    original = transformers.T5EncoderModel(made).eval()
    original.save_pretrained(weights)
    tiny.save_tokenizer(weights)
    write_steps(weights, {"pooling_mode": "mean"}, "Dense")
    weight, bias = dense_layer()
    torch.save({"linear.weight": weight, "linear.bias": bias}, weights / "2_Dense" / "pytorch_model.bin")
    (weights / "2_Dense" / "model.safetensors").unlink()
    for decodes in (False, True):
        edit_json(weights / "config.json", is_encoder_decoder=decodes)
        model = opened(tmp_path, "feature-extraction")
        for text, found in zip(TEXTS, answered(model, TEXTS), strict=True):
            ids = transformers.AutoTokenizer.from_pretrained(weights)(text, return_tensors="pt")["input_ids"]
            with torch.inference_mode():
                hidden = original(input_ids=ids).last_hidden_state[0]
            assert_vector(found, torch.tanh(weight @ hidden.mean(dim=0) + bias))


@pytest.mark.parametrize("measure", ["cosine", "dot"])
def test_a_sentence_is_compared_with_others(tmp_path, measure):
    """Each text is a row of its own length, whatever request it came with."""
    original = tiny.save_bert(tmp_path / "weights", "")
    edit_json(tmp_path / "weights" / SENTENCES, similarity_fn_name=measure)
    model = tried(tmp_path, "sentence-similarity")
    sources, others = TEXTS[:2], [["a cat", "the dog sat on the mat"], ["unhappy", "a day in paris"]]
    for source, sentences, found in zip(sources, others, answered(model, sources, others), strict=True):
        vectors = [vector_of(original, tmp_path / "weights", text) for text in (source, *sentences)]
        if measure == "cosine":
            vectors = [vector / vector.norm() for vector in vectors]
        expected = [float(vectors[0] @ vector) for vector in vectors[1:]]
        assert found["scores"] == pytest.approx(expected, rel=1e-4)
    (read,) = model.front.reader.read([[texts(sources), texts(others)]])
    assert read.own_lengths == {"tokens": [5, 4, 8, 12, 4, 6]}


@pytest.mark.parametrize("task", ["sentence-similarity", "zero-shot-classification"])
def test_rows_of_one_request_may_have_different_numbers_of_texts(tmp_path, task):
    """None beyond a row's own, as the codecs write it."""
    tiny.save_bert(tmp_path / "weights", "SequenceClassification" if task.startswith("zero") else "", id2label=NLI)
    model = opened(tmp_path, task)
    given = [texts(["a cat", "a dog"]), texts([["a", "the cat"], ["bad", None]])]
    assert model.front.reader.rows(given) == 3, "each text of a list is a row"
    (read,) = model.front.reader.read([given])
    made = np.random.default_rng(3).normal(size=(len(read.arrays[0]), 3)).astype(np.float32)
    outputs, lengths = model.front.answers.answer([made], read.note)
    size = 1 if task.startswith("zero") else 2
    (alone,) = model.front.reader.read([[texts(["a dog"]), texts([["bad"]])]])
    expected, none = model.front.answers.answer([made[-size:]], alone.note)
    assert (lengths, none) == ([2, 1], None)
    assert [array[1, :1].tolist() for array in outputs] == [array[0].tolist() for array in expected]
    with pytest.raises(BadRequest, match=r"\[0\] of row 1: expected UTF-8"):
        model.front.reader.read([[texts(["a", "a"]), texts([["a", "a"], [b"\xff", None]])]])


@pytest.mark.parametrize(
    ("pooling", "kinds", "message"),
    [
        ({"pooling_mode_max_tokens": True}, (), "1_Pooling/config.json says max"),
        (OLD_CLS, ("LSTM",), "expected modules.json to list Transformer, Pooling, Dense, Normalize, got "),
    ],
)
def test_steps_that_are_not_made_here(tmp_path, pooling, kinds, message):
    tiny.save_bert(tmp_path / "weights", "")
    write_steps(tmp_path / "weights", pooling, *kinds)
    assert message in broken(tmp_path, "feature-extraction")


# Texts that a request wants cut: as transformers cuts them.


@pytest.mark.parametrize(
    ("cut", "length", "side"),
    [(TextCut(6), 6, "right"), (TextCut(6, left=True), 6, "left"), (TextCut(), 9, "right"), (TextCut(99), 9, "right")],
)
@pytest.mark.parametrize("pairs", [False, True])
def test_long_texts_are_cut_as_transformers_cuts_them(tmp_path, cut, length, side, pairs):
    tiny.save_bert(tmp_path / "weights", id2label=NLI)
    front = opened(tmp_path, CLASSIFIED, f"max_tokens = 9\npairs = {str(pairs).lower()}").front
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "weights", truncation_side=side)
    assert front.reader.cuts
    for first, second in (("the cat sat on a mat in paris", "a dog ran in paris on a mat"), ("the cat", "bad")):
        given = [first, second] if pairs else [first]
        (read,) = front.reader.read([[texts([one]) for one in given]], cut)
        wanted = words(*given, truncation=True, max_length=length)
        assert read.arrays[0].tolist() == [wanted.input_ids]
        assert read.arrays[1].tolist() == [wanted.token_type_ids]
    with pytest.raises(BadRequest, match=r"^truncate: expected at least \d tokens, as special ones count, got 2"):
        front.reader.read([[texts([one]) for one in given]], TextCut(2))


@pytest.mark.parametrize("left", [False, True])
def test_nothing_is_kept_of_what_is_cut_off(tmp_path, left):
    """The tokenizers library joins each piece of the one text with each of the other: gigabytes for a few pairs."""
    tokenizer = tiny.save_tokenizer(tmp_path).backend_tokenizer
    long = "the cat " * 100, "a dog " * 100
    (one,) = encode_cut(tokenizer, tokenizer.encode_batch, [long], TextCut(), 9, left)
    assert (len(one), getattr(one, "overflowing", [])) == (9, [])


def test_a_document_alone_is_cut(tmp_path):
    tiny.save_bert(tmp_path / "weights", id2label=ONE_LABEL)
    front = opened(tmp_path, "rerank").front
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "weights")
    (read,) = front.reader.read([[texts(["the cat sat"]), texts(["a dog ran in paris"])]], TextCut(2, last=True))
    assert read.arrays[0].tolist() == [words("the cat sat", "a dog").input_ids]
