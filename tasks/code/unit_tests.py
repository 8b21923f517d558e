"""Splits a unit test into what the program computes (holes) and the check of it (question).

The **holes** of a test are the largest expressions that begin with a name of the program; they are evaluated in its
sandbox. The rest of the assertion is the **question**, evaluated in another one:

    assert sorted(pairs([1, 2])[0])[1:] == [2]       the hole is    sorted(pairs([1, 2])[0])

docs/programs.md says what an assert may be. Invariant: no expected value is part of a hole or of the setup.
"""

import ast
import builtins
import sys
from collections.abc import Iterator, Set
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeGuard

_BUILTINS = frozenset(dir(builtins))
_MODULES = sys.stdlib_module_names
_BINDERS = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.NamedExpr)
_CONVERSIONS = (bool, dict, float, frozenset, int, list, set, str, tuple)
_LOOKING = (all, any, iter, len, max, min, next, repr, reversed, sorted, sum)
_PURE = frozenset(each.__name__ for each in (*_CONVERSIONS, *_LOOKING))
_ASKING = frozenset({"isinstance", "type"})
_TYPES = frozenset(kind.__name__ for kind in (*_CONVERSIONS, bytes, complex, object, Decimal, Fraction)) | {
    "decimal",
    "fractions",
}
_OF_OBJECTS = frozenset(["callable", "delattr", "dir", "getattr", "hasattr", "id", "issubclass", "setattr", "vars"])
_OF_VALUES = frozenset(name for kind in (str, bytes, int, float, complex, list, tuple, set, dict) for name in dir(kind))


class TestError(ValueError):
    """A test that cannot be split; the message says why."""

    __test__ = False  # not one of pytest's


@dataclass(frozen=True, slots=True)
class UnitTest:
    """A split assertion: the program evaluates `holes`; `question` is an expression over their values h0, h1, ... For
    `hole == literal`, `literal` is the value (in a tuple) and the question needs no interpreter."""

    text: str
    holes: tuple[str, ...]
    question: str
    modules: tuple[str, ...]  # standard modules that the question names
    literal: tuple[Any] | None
    skippable: frozenset[int]  # holes that short-circuiting may skip (`f(1) or f(2)`: f(2))


@dataclass(frozen=True, slots=True)
class Setup:
    """The names that the statements before the tests bind."""

    imports: tuple[str, ...] = ()  # imports from the standard library; questions need them, too
    imported: frozenset[str] = frozenset()
    derived: frozenset[str] = frozenset()  # made by the program: `root` of `root = Node(1)`
    own: frozenset[str] = frozenset()  # all others: data, functions, classes
    objects: frozenset[str] = frozenset()  # names in `derived` that are instances of the program's classes


def read_setup(text: str) -> Setup:
    """What a setup binds. Raises TestError when it is not Python or contains `import *`."""
    body = _parsed(text, "the setup")
    imports = [node for node in body if _of_the_library(node)]
    imported = {(name.asname or name.name).partition(".")[0] for node in imports for name in node.names}
    if "*" in imported:
        raise TestError("the setup imports *; write the names that it needs")
    bound, derived, objects = set[str](), set[str](), set[str]()
    for node in body:
        if node in imports:
            continue
        names = _bound(node) - bound
        head = _head(node.value) if isinstance(node, ast.Assign) else None
        setup = Setup((), frozenset(imported), frozenset(derived), frozenset(bound - derived))
        if head and head[0] not in setup.own and _is_programs(*head, setup):
            derived |= names
            objects |= names if head[0][:1].isupper() or head[0] in objects else set()
        else:
            derived -= _bound(node)
        bound |= names
    texts, others = tuple(map(ast.unparse, imports)), frozenset(bound - derived)
    return Setup(texts, frozenset(imported - bound), frozenset(derived), others, frozenset(objects & derived))


def split_test(text: str, setup: Setup = Setup()) -> UnitTest:
    """Split an assertion. Raises TestError if it is none, or cannot be judged outside the program's process."""
    body = _parsed(text.strip(), "it")
    if len(body) != 1 or not isinstance(body[0], ast.Assert):
        raise TestError("it is not one assert statement")
    splitter = _Splitter(setup, frozenset())
    question = splitter.question(body[0].test)
    if not splitter.holes:
        splitter = _Splitter(setup, _called(question, setup))
        question = splitter.question(question)
    if not splitter.holes:
        raise TestError("it does not call the program")
    _check_question(question)
    names = {node.id for node in ast.walk(question) if isinstance(node, ast.Name)}
    holes, modules = tuple(splitter.holes), tuple(sorted((names & _MODULES) - setup.imported))
    skippable = frozenset(splitter.skippable)
    return UnitTest(text.strip(), holes, ast.unparse(question), modules, _literal(question), skippable)


def statements(text: str) -> list[str]:
    """The statements of a text with several tests. Raises TestError when it is not Python."""
    return [ast.unparse(statement) for statement in _parsed(text, "it")]


def _parsed(text: str, name: str) -> list[ast.stmt]:
    try:
        return ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise TestError(f"{name} is not Python ({error})") from None


class _Splitter(ast.NodeTransformer):
    """Replaces holes by names. `claimed`: builtins that the program defines itself."""

    def __init__(self, setup: Setup, claimed: Set[str]) -> None:
        self._setup = setup
        self._claimed = claimed
        self._known = (_BUILTINS | _MODULES | setup.imported) - setup.own - setup.derived - claimed
        self.holes: list[str] = []
        self.skippable: set[int] = set()

    def question(self, node: ast.expr, skippable: bool = False) -> ast.expr:
        """Split the operands of and, or, not, if one by one; each may have one hole. `skippable`: by short-circuiting.
        A list or tuple that is compared with an operand without holes may have several: `(f(1), f(2)) == (3, 4)`."""
        match node:
            case ast.BoolOp(op, values):
                return ast.BoolOp(op, [self.question(each, skippable or i > 0) for i, each in enumerate(values)])
            case ast.UnaryOp(ast.Not() as op, operand):
                return ast.UnaryOp(op, self.question(operand, skippable))
            case ast.IfExp(test, body, orelse):
                return ast.IfExp(self.question(test, skippable), self.question(body, True), self.question(orelse, True))
        before = len(self.holes)
        asked: ast.expr = self.visit(node)
        if skippable:
            self.skippable.update(range(before, len(self.holes)))
        if len(self.holes) > before + 1 and not _side_by_side(asked):
            both = " and ".join(self.holes[before:])
            raise TestError(f"it compares several results of the program ({both}); write the expected value out")
        return asked

    def visit(self, node: ast.AST) -> Any:
        """Replace a hole by a name, or search a node that only contains one. Raises TestError inside a lambda."""
        if isinstance(node, _BINDERS):
            if _names(node) - self._known:
                raise TestError("it calls the program inside a comprehension or lambda; write the calls out")
            return node
        if isinstance(node, ast.expr) and self._is_hole(node):
            self._check_arguments(node)
            self.holes.append(ast.unparse(node))
            return ast.Name(f"h{len(self.holes) - 1}", ast.Load())
        match node:
            case ast.Call(ast.Attribute() as method, arguments, keywords) if self._asks_a_value(node):
                method.value = self.visit(method.value)  # visiting the method itself would make it a hole
                node.args = [self.visit(each) for each in arguments]
                node.keywords = [self.generic_visit(each) for each in keywords]  # type: ignore[misc]
                return node
        return self.generic_visit(node)

    def _check_arguments(self, hole: ast.expr) -> None:
        """Raises TestError when the program computes a value inside an argument: it could agree with itself on
        anything. Its objects (`total(Node(1))`) are allowed: they cannot be made elsewhere."""
        calls = [part for part in ast.walk(hole) if isinstance(part, ast.Call) and self._is_of_program(part)]
        parts = (part for call in calls for each in (*call.args, *call.keywords) for part in ast.walk(each))
        for part in (part for part in parts if isinstance(part, ast.expr)):
            head = _head(part)
            if head is None or head[0] in self._setup.own | self._setup.objects or not self._is_of_program(part):
                continue
            if head[0] in self._setup.derived:
                raise TestError(f"it passes {head[0]}, which the program itself made in the setup; write the value out")
            if isinstance(part, ast.Call) and not self._is_object(part) and not head[0][:1].isupper():
                raise TestError(
                    f"it calls {head[0]} inside an argument, where the program could agree with itself on anything; "
                    "write the value out"
                )

    def _is_of_program(self, node: ast.expr) -> bool:
        head = _head(node)
        return head is not None and _is_programs(*head, self._setup, self._claimed)

    def _is_hole(self, node: ast.expr) -> bool:
        match node:
            case ast.Call(ast.Name(name), [argument], []) if name in _PURE and name in self._known:
                return self._is_hole(argument)
        return self._is_of_program(node) and not any(self._asks_a_value(part) for part in _chain(node))

    def _asks_a_value(self, node: ast.expr) -> bool:
        """Whether it calls a method of a builtin type with arguments, which are expected values."""
        match node:
            case ast.Call(ast.Attribute(receiver, name), arguments, keywords) if name in _OF_VALUES:
                return bool(arguments or keywords) and not self._is_object(receiver)
        return False

    def _is_object(self, node: ast.expr) -> bool:
        """Whether it is a class of the program or a new instance of one: then its methods are the program's."""
        match node:
            case ast.Call(ast.Name(name), _, _):
                return name[:1].isupper()
            case ast.Name(name):
                return name[:1].isupper() or name in self._setup.objects
        return False


def _chain(node: ast.expr) -> Iterator[ast.expr]:
    """`name.attribute[index](argument)` and each expression that it begins with, down to `name`."""
    yield node
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
        yield node


def _head(node: ast.expr) -> tuple[str, bool] | None:
    """The name that `name.attribute[index](argument)...` begins with, and whether that name itself is called."""
    parts = list(_chain(node))
    first = parts[-1]
    if not isinstance(first, ast.Name):
        return None
    return first.id, len(parts) > 1 and isinstance(parts[-2], ast.Call)


def _is_programs(name: str, called: bool, setup: Setup, claimed: Set[str] = frozenset()) -> bool:
    """Whether the program defines a name. Raises TestError for a name that the setup defines."""
    if name in setup.own:
        raise TestError(
            f"it uses {name} from the setup, where the program could read it; write the value out in the test"
        )
    if name in setup.derived or name in claimed:
        return True
    if name in setup.imported or name in _BUILTINS:
        return False
    return called or name not in _MODULES  # a module is never called: in `trace(f(1))`, trace is the program's


def _of_the_library(node: ast.stmt) -> TypeGuard[ast.Import | ast.ImportFrom]:
    if isinstance(node, ast.ImportFrom):
        return node.level == 0 and (node.module or "").partition(".")[0] in _MODULES
    return isinstance(node, ast.Import) and all(name.name.partition(".")[0] in _MODULES for name in node.names)


def _bound(node: ast.stmt) -> set[str]:
    """The names that a statement binds, also inside its functions and classes."""
    names = set[str]()
    for part in ast.walk(node):
        match part:
            case ast.Name(name, ast.Store() | ast.Del()):
                names.add(name)
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                names.add(name)
            case ast.alias(name, asname):
                names.add((asname or name).partition(".")[0])
    return names


def _names(node: ast.AST) -> set[str]:
    """The names in a comprehension or lambda that it does not bind itself."""
    inside = list(ast.walk(node))
    bound = {name.id for name in inside if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
    bound |= {argument.arg for argument in inside if isinstance(argument, ast.arg)}
    return {name.id for name in inside if isinstance(name, ast.Name)} - bound


def _called(question: ast.expr, setup: Setup) -> frozenset[str]:
    """The builtin that the program must define: the first one called, preferably one that is not in `_PURE`. Raises
    TestError when its arguments compute with another call: they may contain the expected value."""
    calls = [
        (node.lineno, node.col_offset, node.func.id, node)
        for node in ast.walk(question)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    calls = [call for call in calls if call[2] in _BUILTINS - _ASKING - _OF_OBJECTS - setup.imported]
    first = min(calls, key=lambda call: (call[2] in _PURE, *call[:2]), default=None)
    if first is None:
        return frozenset()
    for argument in ast.walk(first[3]):
        if isinstance(argument, ast.BinOp | ast.Compare) and any(
            isinstance(part, ast.Call) for part in ast.walk(argument)
        ):
            raise TestError("it is not clear which of its functions the program defines")
    return frozenset({first[2]})


def _is_hole_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id[:1] == "h" and node.id[1:].isdigit()


def _holes_in(node: ast.AST) -> int:
    return sum(map(_is_hole_name, ast.walk(node)))


def _side_by_side(asked: ast.expr) -> bool:
    match asked:
        case ast.Compare(ast.List(answers) | ast.Tuple(answers), [ast.Eq() | ast.NotEq()], [expected]):
            return not _holes_in(expected) and all(_holes_in(answer) <= 1 for answer in answers)
    return False


def _check_question(question: ast.expr) -> None:
    """Raises TestError for a check of an object: only values leave the program's sandbox."""
    for node in ast.walk(question):
        match node:
            case ast.Name(name) if name in _OF_OBJECTS:
                raise TestError(f"{name}() checks an object of the program; check its values")
            case ast.Call(ast.Name("isinstance"), [_, kinds], []):
                other = {name.id for name in ast.walk(kinds) if isinstance(name, ast.Name)} - _TYPES
                if other:
                    raise TestError(
                        f"it checks for an instance of {', '.join(sorted(other))}; only builtin types can be checked"
                    )
            case ast.Compare(left, operators, others) if any(
                isinstance(each, ast.Is | ast.IsNot) for each in operators
            ):
                operands = [left, *others]
                holes = [each for each in operands if _is_hole_name(each)]
                if holes and not all(each in holes or _is_singleton(each) for each in operands):
                    raise TestError("it checks whether two objects are identical; check whether they are equal")


def _is_singleton(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, bool))


def _literal(question: ast.expr) -> tuple[Any] | None:
    """The value of R in `h0 == R` where R is a literal."""
    match question:
        case ast.Compare(left=ast.Name(id="h0"), ops=[ast.Eq()], comparators=[right]):
            try:
                return (ast.literal_eval(right),)
            except (ValueError, TypeError, MemoryError, RecursionError):
                return None
    return None
