"""The fields of other servers' requests: of OpenAI, vLLM, SGLang, TGI, TEI, Triton's backends, Cohere and NIM.

One table says what becomes of each. A value that asks for nothing is accepted, so that clients which spell out their
defaults work. Any other sets a parameter, or is refused by name: it is never ignored. null always counts as not given.
docs/tasks.md lists those that set a parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from app.errors import bad_field
from app.values.tensors import shown


class Field(NamedTuple):
    """`neutral`: values that ask for nothing. Another sets the parameter `sets`, or is refused for the reason `why`.

    Without either the field has no influence on an answer, whatever its value.
    """

    names: str
    neutral: tuple[Any, ...] = ()
    sets: str = ""
    why: str = ""


FIELDS = (
    Field("max_tokens max_completion_tokens", sets="max_new_tokens"),
    Field("min_tokens min_length", (0,), sets="min_new_tokens"),
    Field("stop_words", ("", [], [""], [[]], [[""]]), sets="stop"),
    Field("end_id", (-1, []), sets="stop_token_ids"),
    Field("seed random_seed sampling_seed", (-1,), sets="seed"),
    Field("ignore_eos_token", (False,), sets="ignore_eos"),
    Field("no_stop_trim", (False,), sets="include_stop_str_in_output"),
    Field("n best_of num_return_sequences beam_width", (1,), why="a prompt has one answer; ask again for another"),
    Field("use_beam_search early_stopping beam_search_diversity_rate diversity_penalty", (False, 0),
          why="there is no beam search"),
    Field("length_penalty", (1,), why="there is no beam search"),
    Field("frequency_penalty presence_penalty", (0,), why="there is repetition_penalty"),
    Field("min_p top_a epsilon_cutoff eta_cutoff xtc_probability", (0,), why="there are top_k and top_p"),
    Field("typical_p tfs", (1,), why="there are top_k and top_p"),
    Field("guidance_scale encoder_repetition_penalty", (1,), why="tokens are chosen by the model's own scores"),
    Field("logit_bias", ({},), why="tokens are the model's own"),
    Field("bad_words bad_words_ids allowed_token_ids", ("", [], [""], [[]], [[""]]), why="a request can ban no words"),
    Field("logits_processors logits_processor_args", ([], {}), why="the server runs no code of a request"),
    Field("logprobs prompt_logprobs return_log_probs decoder_input_details return_context_logits "
          "return_generation_logits", (False,), why="probabilities of tokens are not given"),
    Field("top_logprobs top_n_tokens", (False, 0), why="probabilities of tokens are not given"),
    Field("return_tokens_as_token_ids return_token_ids return_hidden_states", (False,), why="answers have texts alone"),
    Field("detokenize", (True,), why="answers have texts, no tokens"),
    Field("echo return_full_text", (False,), why="an answer has what the model has written"),
    Field("exclude_input_in_output", (True,), why="an answer has what the model has written"),
    Field("suffix", ("",), why="a text is continued at its end"),
    Field("spaces_between_special_tokens", (True,), why="spaces are as the tokenizer writes them"),
    Field("add_special_tokens", (True,), why="the tokenizer adds its own, but no second BOS"),
    Field("include_usage continuous_usage_stats", (False,), why="it is a field of stream_options"),
    Field("input_type prompt_name", why="the prompt of a model is that of its model.toml"),
    Field("modality embedding_type", ("text", "float"), why="the model makes floats of texts"),
    Field("use_cache", (True,), why="the model always has one"),
    Field("watermark", (False,), why="texts have no watermark"),
    Field("tools functions", ([],), why="the model calls no tools"),
    Field("tool_choice function_call", ("none", "auto"), why="the model calls no tools"),
    Field("response_format", ({"type": "text"},), why="the model writes texts"),
    Field("modalities", (["text"],), why="the model writes texts"),
    Field("guided_json guided_regex guided_choice guided_grammar structured_outputs grammar json_schema regex ebnf",
          ("", [], {}), why="the model writes texts"),
    Field("guided_decoding_backend guided_whitespace_pattern"),
    Field("chat_template", why="the template is that of the model's folder"),
    Field("chat_template_kwargs mm_processor_kwargs documents", ({}, []), why="the template gets messages alone"),
    Field("add_generation_prompt", (True,), why="an answer is a message of its own"),
    Field("continue_final_message", (False,), why="an answer is a message of its own"),
    Field("reasoning_effort", ("none",), why="the model does not reason apart from its answer"),
    Field("verbosity", ("medium",), why="the length of an answer is bounded by max_tokens alone"),
    Field("prompt_embeds lora_task_id adapter_id lora_name", (), why="the model is as its folder has it"),
    Field("store", (False,), why="answers are not kept"),
    Field("service_tier", ("auto", "default"), why="the class of a request is its header X-Class"),
    Field("priority", (0,), why="it is ?priority= in the query, and in V2 a parameter"),
    Field("user metadata parallel_tool_calls prompt_cache_key prompt_cache_options prompt_cache_retention "
          "safety_identifier request_id cache_salt session_id pad_id details return_perf_metrics accumulate_tokens "
          "include_reasoning separate_reasoning stream_reasoning"),
)  # fmt: skip

BY_NAME: Mapping[str, Field] = {name: field for field in FIELDS for name in field.names.split()}


def is_neutral(name: str, value: Any) -> bool:
    """Whether this field asks for nothing with this value. Raises BadRequest for one that cannot be had."""
    field = BY_NAME.get(name)
    if value is None:
        return True
    if field is None:
        return False
    if any(_same(value, one) for one in field.neutral):
        return True
    if field.why:
        expected = " or ".join(shown(one) for one in field.neutral) or "nothing"
        raise bad_field(name, f"expected {expected}, got {shown(value)}: {field.why}")
    return not field.sets


def refuse_unknown(given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise BadRequest for a field that is neither known nor neutral."""
    names = frozenset(known)
    for name, value in given.items():
        if name not in names and not is_neutral(name, value):
            expected = ", ".join(sorted(names))
            raise bad_field(name, f"unknown field; expected one of {expected}, got {shown(value)}")


def _same(given: Any, value: Any) -> bool:
    """Whether they are equal as JSON: true is not 1."""
    return given == value and (type(given) is bool) == (type(value) is bool)
