"""One JSON, tables and plots from the results of bench/gsm8k/run.py.

    python bench/gsm8k/report.py OUT [--alone OUT2] [--write]

--alone: stages that were repeated with nothing beside them on the GPU, for their time.
--write: bench/results/DATE-gsm8k.json and docs/results/gsm8k*.png.

OUT may also be a JSON that was written before.
"""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path
from typing import Any

from plots import plot
from tables import tables
from verdict import verdict

ROOT = Path(__file__).resolve().parents[2]


def gather(out: Path, part: str = "results") -> dict[str, Any]:
    if out.is_file():
        return json.loads(out.read_text()).get(part, {})  # type: ignore[no-any-return]
    return {path.stem: json.loads(path.read_text()) for path in sorted(out.glob("*.json"))}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--alone", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    found, repeated = gather(given.out), given.out.is_file()
    alone = gather(given.alone) if given.alone else gather(given.out, "alone") if repeated else {}
    result = verdict(found)
    print(json.dumps(result, indent=1))
    print("\n".join(tables(found)))
    today = datetime.date.today().isoformat()
    if given.write:
        command = "python bench/gsm8k/run.py, then python bench/gsm8k/report.py OUT --write"
        record = {"study": "gsm8k", "date": today, "command": command, **result}
        path = ROOT / "bench/results" / f"{today}-gsm8k.json"
        path.write_text(json.dumps({**record, "results": found, "alone": alone}, indent=1) + "\n")
    plot(
        found,
        alone,
        ROOT / "docs/results" if given.write else given.out.parent if repeated else given.out,
    )


if __name__ == "__main__":
    main()
