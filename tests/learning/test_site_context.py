"""What sites of one process would read alike is made once."""

from __future__ import annotations

import torch

from secure_fl.learning.site_context import ModelCache


def test_each_site_gets_an_equal_model_of_its_own_and_one_is_made() -> None:
    cache, made = ModelCache(3), list[torch.nn.Linear]()

    def make() -> torch.nn.Linear:
        made.append(torch.nn.Linear(2, 2))
        return made[-1]

    models = [cache.get("key", make) for _ in range(3)]
    assert len(made) == 1
    assert models[-1] is made[0]  # no model is held beyond those at work
    assert len({id(model) for model in models}) == 3
    assert all(torch.equal(model.weight, made[0].weight) for model in models)
    with torch.no_grad():
        models[0].weight.zero_()
    assert models[1].weight.any()
    cache.get("key", make)
    assert len(made) == 2  # a fourth would begin anew


def test_what_differs_is_made_apart() -> None:
    cache = ModelCache(2)
    assert cache.get("a", lambda: [1]) == [1]
    assert cache.get("b", lambda: [2]) == [2]
