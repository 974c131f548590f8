"""What a diagnosis says. Frozen and plain, so that diagnosis.json, the terminal and the page show the same."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from ascent.advice import KeyChange

FORMAT = 1
FILE, PLOT = "diagnosis.json", "diagnosis.png"  # in the run folder
SURE, LIKELY = 0.85, 0.6


@dataclass(frozen=True)
class Finding:
    """A cause that a rule found.

    `cause` is a row of `ascent.diagnose.table.RULES`. `began` is the step at which it first showed, None where it was
    there before the run. `confidence` is between 0 and 1. `evidence` are sentences with numbers; `metrics` the curves
    that show it; `rollouts` up to three records of samples.jsonl. `note` marks what is no failure. `follows_from` names
    a further cause in the same run that explains this one.
    """

    cause: str
    summary: str
    began: int | None
    confidence: float
    evidence: tuple[str, ...]
    changes: tuple[KeyChange, ...]
    metrics: tuple[str, ...] = ()
    rollouts: tuple[dict[str, Any], ...] = ()
    note: bool = False
    follows_from: str | None = None

    @property
    def certainty(self) -> str:
        """sure, likely or possible."""
        return (
            "sure"
            if self.confidence >= SURE
            else "likely"
            if self.confidence >= LIKELY
            else "possible"
        )


@dataclass(frozen=True)
class Diagnosis:
    """What happened to a run: findings, the most important first; none for a healthy run.

    `against` has a line for each run that it was compared with.
    """

    run: str
    step: int
    findings: tuple[Finding, ...]
    plot: str | None = None
    against: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether there is a finding that is not a mere note."""
        return any(not each.note for each in self.findings)

    @property
    def cause(self) -> str | None:
        """The first finding's cause; None for a healthy run."""
        return self.findings[0].cause if self.findings else None

    def line(self) -> str:
        """One line, as printed at the end of a run."""
        if not self.findings:
            return "diagnosis: nothing found wrong"
        first = self.findings[0]
        since = f" from step {first.began} on" if first.began else ""
        fix = f"; {first.changes[0].text()}" if first.changes else ""
        return f"diagnosis: {first.cause} ({first.certainty}){since}: {first.evidence[0]}{fix}"

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"


def from_json(text: str) -> Diagnosis:
    """The content of diagnosis.json; ValueError for another format."""
    content = json.loads(text)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"a diagnosis of another format than {FORMAT}; diagnose the run again")
    findings = tuple(
        Finding(
            **{
                **each,
                "evidence": tuple(each["evidence"]),
                "changes": tuple(KeyChange(**change) for change in each["changes"]),
                "metrics": tuple(each["metrics"]),
                "rollouts": tuple(each["rollouts"]),
            }
        )
        for each in content["findings"]
    )
    return Diagnosis(
        content["run"], content["step"], findings, content["plot"], tuple(content["against"])
    )
