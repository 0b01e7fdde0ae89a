"""The largest model of a plan counts the adapters of all models that are trained at once."""

from __future__ import annotations

from typing import Any

from secure_fl.algorithms.fedkd import FedKD
from secure_fl.policy.model_size import trained_values, values_asked
from secure_fl.settings import AdapterSettings, ModelSettings
from tests.support.local_pilot import plan_of


def test_the_adapters_of_teacher_and_student_count() -> None:
    lora = ModelSettings(layers=3, adapter=AdapterSettings(rank=2))
    ranks: dict[Any, tuple[int, int]] = {"shared": (2, 5), "personal": (4, 5)}
    for teachers, (of_teacher, of_student) in ranks.items():
        asked = plan_of(FedKD(teachers=teachers, student_layers=1, student_rank=5)).model_copy(
            update={"model": lora}
        )
        teacher, student = (
            trained_values(
                lora.model_copy(update={"layers": n, "adapter": AdapterSettings(rank=r)})
            )
            for n, r in ((3, of_teacher), (1, of_student))
        )
        assert values_asked(asked) == teacher + student
