"""Which problems are held out, and what may not be trained on because of them.

Invariant: no layout of a held-out question is trained on: neither other blanks and cases, nor a system message that one
side alone has."""

from collections import Counter
from collections.abc import Iterable, Set

from core.config import TaskConfig
from core.errors import DataError
from tasks.dialogue.chat import question_of
from tasks.problems import Item, prompt_digest


def held_out_digests(items: Iterable[Item], rows: Iterable[Item]) -> frozenset[str]:
    """Digests of the prompts of held-out `items`, and of their questions without system messages. Of `rows`, the data
    set that they are from, only one prompt may ask such a question: "Summarise the text." is told apart by what the
    system message says."""
    asked = Counter(question_of(row.messages) for row in {row.prompt: row for row in rows}.values())
    texts = {item.prompt for item in items}
    texts |= {question for item in items if asked[question := question_of(item.messages)] == 1}
    return frozenset(map(prompt_digest, texts - {""}))


def not_held_out(items: Iterable[Item], digests: Set[str]) -> list[Item]:
    """The items whose prompt has none of the digests, neither with system messages nor without."""
    return [
        item
        for item in items
        if digests.isdisjoint({prompt_digest(item.prompt), prompt_digest(question_of(item.messages))})
    ]


def split_items(
    config: TaskConfig, items: list[Item], evaluation: list[Item] | None
) -> tuple[list[Item], list[Item], int]:
    """Training items, evaluation items (disjoint by prompt text) and the number of duplicates dropped.

    Without evaluation data the `eval_problems` prompts with the smallest hashes are held out: the same ones in every
    run, for any seed and order of rows. With evaluation data, none of it is trained on, and its first `eval_problems`
    items are evaluated. Raises DataError when of the training items none is left.
    """
    unique = {prompt_digest(item.prompt): item for item in reversed(items)}
    kept_out: dict[str, Item]
    if evaluation is None:
        if config.eval_problems >= len(unique):
            raise DataError(
                f"{config.path}: task.eval_problems = {config.eval_problems} of {len(unique)} distinct prompts leave "
                "none to train on; lower it or set task.eval_path"
            )
        kept_out = {key: unique[key] for key in sorted(unique)[: config.eval_problems]}
    else:
        kept_out = {prompt_digest(item.prompt): item for item in evaluation}
    train = not_held_out(reversed(unique.values()), held_out_digests(kept_out.values(), evaluation or items))
    if items and not train:
        raise DataError(f"{config.path}: every prompt is also an evaluation prompt; give task.eval_path other data")
    return (
        train[: config.problems],
        list(kept_out.values())[: config.eval_problems],
        len(items) - len(unique),
    )
