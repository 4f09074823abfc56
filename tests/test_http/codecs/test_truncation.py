"""How long texts are cut, by the fields of several protocols."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from app.errors import BadRequest
from app.http.codecs.text_codec import cut_of

CUTS: dict[str, Any] = {"truncate": True, "truncate_prompt_tokens": 4, "max_tokens_per_doc": 5}


@pytest.mark.parametrize(("first", "second"), list(permutations(CUTS, 2)))
def test_of_two_cuts_the_first_that_the_client_sends_is_named(first: str, second: str) -> None:
    """Not one or the other, by the seed of Python's hashes."""
    with pytest.raises(BadRequest, match=f"^{first}: expected nothing beside {second}$"):
        cut_of({first: CUTS[first], "user": "me", second: CUTS[second]}, None)
