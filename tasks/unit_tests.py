"""Unit tests taken apart: what the program computes, and what is then asked of it.

Called by `tasks/code.py`. A test is one `assert` statement. Its **holes** are the largest expressions that begin at a name
which is neither a builtin nor a module of the standard library, hence the program's (or the setup's) own: in

    assert sorted(pairs([1, 2])[0]) == [1, 2]        the hole is    pairs([1, 2])[0]

Where that leaves no hole, the program must define what the first call names (MBPP has its own `sum` and `divmod`), builtin or not.
Holes are evaluated beside the program, the rest of the assertion (the **question**) where the program has never been, over the
plain values of the holes. Invariant: no expected value is part of a hole, so the program's process never sees one.
"""

import ast
import builtins
import sys
from collections.abc import Set
from dataclasses import dataclass
from typing import Any

_KNOWN = frozenset(dir(builtins)) | sys.stdlib_module_names
_BINDERS = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.NamedExpr)


class TestError(ValueError):
    """A test that cannot be taken apart; the message says why."""

    __test__ = False  # not one of pytest's


@dataclass(frozen=True, slots=True)
class UnitTest:
    """An assertion apart: `holes` for the program's side; for the other a `question` over h0, h1, ...

    Where the assertion is `hole == literal`, `literal` holds the value (in a tuple) and the question needs no interpreter.
    """

    text: str
    holes: tuple[str, ...]
    question: str
    modules: tuple[str, ...]  # of the standard library, that the question names
    literal: tuple[Any] | None


def split_test(text: str) -> UnitTest:
    """Take an assertion apart. Raises TestError when it is none or cannot be judged apart from the program."""
    try:
        statements = ast.parse(text.strip()).body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise TestError(f"it is not Python ({error})") from None
    if len(statements) != 1 or not isinstance(statements[0], ast.Assert):
        raise TestError("it is not one assert statement")
    splitter = _Splitter(_KNOWN)
    question = splitter.visit(statements[0].test)
    if not splitter.holes:
        splitter = _Splitter(_KNOWN - _first_called(question))
        question = splitter.visit(question)
    if not splitter.holes:
        raise TestError("it asks nothing of the program")
    names = {node.id for node in ast.walk(question) if isinstance(node, ast.Name)}
    return UnitTest(
        text.strip(),
        tuple(splitter.holes),
        ast.unparse(question),
        tuple(sorted(names & sys.stdlib_module_names)),
        _literal(question),
    )


def statements(text: str) -> list[str]:
    """The statements of a text with several tests. Raises TestError when it is not Python."""
    try:
        return [ast.unparse(statement) for statement in ast.parse(text).body]
    except (SyntaxError, ValueError) as error:
        raise TestError(f"it is not Python ({error})") from None


class _Splitter(ast.NodeTransformer):
    """Replaces holes by names."""

    def __init__(self, known: Set[str]) -> None:
        self._known = known
        self.holes: list[str] = []

    def visit(self, node: ast.AST) -> Any:
        """A hole becomes a name; what only contains one is searched further."""
        if isinstance(node, _BINDERS) and _names(node) - self._known:
            raise TestError("it asks the program inside a comprehension or lambda; write the calls out")
        if isinstance(node, ast.expr) and _head(node) not in self._known | {None}:
            self.holes.append(ast.unparse(node))
            return ast.Name(f"h{len(self.holes) - 1}", ast.Load())
        return self.generic_visit(node)


def _head(node: ast.expr) -> str | None:
    """The name that `name.attribute[index](argument)...` begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def _names(node: ast.AST) -> set[str]:
    """The names in a comprehension or lambda that it does not bind itself."""
    inside = list(ast.walk(node))
    bound = {name.id for name in inside if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
    bound |= {argument.arg for argument in inside if isinstance(argument, ast.arg)}
    return {name.id for name in inside if isinstance(name, ast.Name)} - bound


def _first_called(question: ast.expr) -> set[str]:
    """The name called first in the text, as a set of at most one."""
    calls = [node for node in ast.walk(question) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    first = min(calls, key=lambda call: (call.lineno, call.col_offset), default=None)
    return {first.func.id} if first is not None and isinstance(first.func, ast.Name) else set()


def _literal(question: ast.expr) -> tuple[Any] | None:
    """The value of R in `h0 == R` where R is a literal."""
    match question:
        case ast.Compare(left=ast.Name(id="h0"), ops=[ast.Eq()], comparators=[right]):
            try:
                return (ast.literal_eval(right),)
            except (ValueError, TypeError, MemoryError, RecursionError):
                return None
    return None
