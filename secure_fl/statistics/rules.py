"""[site.statistics]: what a site lets be asked of its records, and how coarse answers must be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from secure_fl.config import toml as config_toml
from secure_fl.config.toml import Text
from secure_fl.config.validation import validate
from secure_fl.errors import QuestionRefused
from secure_fl.settings import Positive, Section
from secure_fl.statistics.questions import Question

Kind = Literal["count", "categories", "histogram", "table", "vocabulary", "survival", "duplicates"]


class StatisticsRules(Section):
    """Rules for questions about this site's records. The strictest rules of all sites apply."""

    kinds: tuple[Kind, ...] = (
        "count", "categories", "histogram", "table", "vocabulary", "survival",
    )  # fmt: skip
    """Allowed kinds of questions. duplicates only if every site allows it: it shows which of a
    site's records other sites also hold."""
    fields: tuple[str, ...] | None = None
    """Fields that questions may use. Default: all but texts and names."""
    min_patients: Positive = 10
    """Minimum number of patients behind every released number, over all sites."""
    rounding: Positive = 1
    """Counts are released as multiples of it."""
    questions_a_day: Positive = 20
    max_epsilon: Annotated[float, Field(ge=0)] = 1.0
    """Budget of all answers with noise, ever."""
    max_delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5

    def require_allowed(self, question: Question, asked_today: int) -> None:
        """Refuse a question that this site does not allow."""
        if question.kind not in self.kinds:
            raise _refused("site.statistics.kinds", question.kind, self.kinds)
        for field in question.fields:
            own = field == "text" and question.kind in ("vocabulary", "duplicates")
            if self.fields is not None and field not in self.fields and not own:
                raise _refused("site.statistics.fields", field, self.fields)
        if asked_today >= self.questions_a_day:
            raise QuestionRefused(
                f"{asked_today} questions were asked today",
                fix="ask tomorrow, or raise questions_a_day in [site.statistics]",
                field="site.statistics.questions_a_day",
            )
        if question.epsilon is not None and question.delta > self.max_delta:
            raise QuestionRefused(
                f"δ = {question.delta:g} is asked for; allowed up to {self.max_delta:g}",
                fix="ask with a smaller delta",
                field="site.statistics.max_delta",
            )


def load_rules(path: str | Path) -> StatisticsRules:
    """Read [site.statistics] of a hospital's file; its other sections are not looked at."""
    file = Path(path)
    content = config_toml.read(
        file, "rules", missing="check the path", instead="give a TOML file with [site.statistics]"
    )
    site = config_toml.parse(content, str(file)).get("site", {})
    raw = site.get("statistics") if isinstance(site, dict) else None
    text = Text(str(file), config_toml.lines(content))
    if not isinstance(raw, dict):
        fix = "write [site.statistics] and its fields below it"
        raise text.error("there is no table [site.statistics]", ("site", "statistics"), fix=fix)
    return validate(StatisticsRules, raw, ("site", "statistics"), text)


def told(rules: StatisticsRules) -> Any:
    """Return the rules that all sites must know, to follow the strictest."""
    import numpy as np  # here: whoever only reads rules needs none

    return np.array([rules.min_patients, rules.rounding], np.int64)


def strictest(of_sites: Sequence[Any]) -> tuple[int, int]:
    """Return the strictest minimum of patients, and the step of rounded counts."""
    import numpy as np

    least, rounding = np.stack(of_sites).max(0).tolist()
    return int(least), int(rounding)


def _refused(rule: str, asked: str, allowed: Sequence[str]) -> QuestionRefused:
    return QuestionRefused(
        f"{asked!r} is not allowed; allowed: {', '.join(allowed) or 'nothing'}",
        fix="ask something else, or ask the person responsible for this site's records to add it",
        field=rule,
    )
