"""Prints what the check of equations says of responses, for a person who counts its errors.

    python -m bench.equations runs/NAME/evaluations/000010.jsonl

Reads rows with a `response`, as `launch.py evaluate --responses` and every evaluation of a run write them.
"""

import sys
from collections import Counter
from pathlib import Path

from core.run_directory import read_jsonl
from tasks.mathematics.equations import equations, states_false_equation

SAID = {True: "wrong", False: "not wrong", None: "cannot tell"}


def main(path: Path) -> None:
    """Print every response with its verdict and its equations, then the counts."""
    counts: Counter[str] = Counter()
    for number, row in enumerate(read_jsonl(path), 1):
        text = f"{row['response']}\n"
        said = SAID[states_false_equation(text)]
        counts[f"{said}, {'correct' if row.get('correct') else 'not correct'}"] += 1
        print(f"--- {number} {row.get('problem', '')}: {said}\n{text}")
        for equation in equations(text):
            print(f"    {'not judged' if equation.true is None else equation.true}: {equation.text}")
    print(*(f"{count} {name}" for name, count in sorted(counts.items())), sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
