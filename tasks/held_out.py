"""Which problems are held out, and what may not be trained on because of them.

Invariant: no layout of a held-out question is trained on: neither other blanks and cases, nor a system message that one
side alone has."""

from collections import defaultdict
from collections.abc import Iterable, Set

from core.config import TaskConfig
from core.errors import DataError
from tasks.dialogue.chat import question_of
from tasks.problems import Item, prompt_digest


def held_out_digests(items: Iterable[Item], rows: Iterable[Item]) -> frozenset[str]:
    """Digests of the prompts of held-out `items`, also in their templates, and of their questions without system
    messages. `rows`: those to train on and those held out, which tell questions from instructions."""
    instructions = _instructions(rows)
    texts = {text for item in items for text in (item.prompt, item.form.template.replace("{prompt}", item.prompt))}
    texts |= {question_of(item.messages) for item in items} - instructions
    return frozenset(map(prompt_digest, texts)) - {prompt_digest("")}


def _instructions(rows: Iterable[Item]) -> frozenset[str]:
    """Questions such as "Summarise the text." with the text in the system message. They stand under more system
    messages than any of these has questions."""
    systems, questions = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for row in rows:
        if question := question_of(row.messages):
            system = "\n".join(message.content for message in row.messages if message.role == "system")
            systems[question].add(system)
            questions[system].add(question)
    return frozenset(
        question
        for question, found in systems.items()
        if "" not in found and len(found) > max(len(questions[system]) for system in found)
    )


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
    train = not_held_out(reversed(unique.values()), held_out_digests(kept_out.values(), [*items, *(evaluation or ())]))
    if items and not train:
        raise DataError(f"{config.path}: every prompt is also an evaluation prompt; give task.eval_path other data")
    return (
        train[: config.problems],
        list(kept_out.values())[: config.eval_problems],
        len(items) - len(unique),
    )
