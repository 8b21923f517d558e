"""An evaluation as one table: all held-out problems, each data set of a mixture, each level, each evaluation set. The
console, TensorBoard and the report show the same rows."""

from collections.abc import Mapping
from typing import Any


def evaluation_rows(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of an `evaluation_record`, all with the same columns: `success` is the greedy accuracy. If there are
    sampled responses, `average` is avg@k (the mean accuracy of `samples` responses), `any` is pass@k; None without."""
    parts = [("all", record), *((part["source"], part) for part in record["sources"])]
    parts += [(part["level"], part) for part in record["levels"] if part["level"]]
    parts += [(part["set"], part) for part in record.get("sets", ())]  # a run of an older version has none
    rows = []
    for name, part in parts:
        row = {"set": name} | {column: part[column] for column in ("problems", "success", "low", "high")}
        if any(one["pass"] for _, one in parts):
            passes = part["pass"]
            average = passes.get("1", {})
            row |= {"samples": max(map(int, passes), default=0), "average": average.get("mean")}
            row |= {"average_low": average.get("low"), "average_high": average.get("high")}
            row["any"] = passes[str(row["samples"])]["mean"] if passes else None
        rows.append(row)
    return rows


def evaluation_table(record: Mapping[str, Any]) -> list[str]:
    """The rows as lines of text, with a head."""
    lines = [["", "problems", "greedy (95 % interval)", ""]]
    for row in evaluation_rows(record):
        cells = [row["set"], str(row["problems"]), _percent(row["success"], row["low"], row["high"]), ""]
        if k := row.get("samples"):
            average = _percent(row["average"], row["average_low"], row["average_high"])
            cells[3] = f"avg@{k} {average}, pass@{k} {100 * row['any']:.1f} %"
        lines.append(cells)
    lines += [[f"{part['set']}: {told}", "", "", ""] for part in record.get("sets", ()) if (told := _failures(part))]
    widths = [max(len(line[at]) for line in lines if line[1]) for at in range(3)]
    return [
        "  ".join([line[0].ljust(widths[0]), line[1].rjust(widths[1]), line[2].ljust(widths[2]), line[3]]).rstrip()
        for line in lines
    ]


def _percent(mean: float, low: float, high: float) -> str:
    return f"{100 * mean:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def _failures(part: Mapping[str, Any]) -> str:
    """What a reader of a set's numbers must know: "12.5 % truncated, 1 left out, 2 without a verdict"."""
    told = [f"{100 * part['truncated']:.1f} % truncated"] if part["truncated"] else []
    told += [f"{part['left_out']} left out"] if part["left_out"] else []
    return ", ".join([*told, *([f"{part['judge_failures']} without a verdict"] if part["judge_failures"] else [])])
