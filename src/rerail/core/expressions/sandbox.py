"""The sandbox for expressions: the filters, tests and methods it offers, and the budget of an evaluation.

Only the names listed here exist, so additions in a new release of Jinja are absent until they have been reviewed. Each
evaluation has a budget: every operation that reads, makes or walks through a value pays for its size before it does so.
Nothing is computed when an expression is only checked: constants are not folded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any

import msgspec

MAX_TEXT = 10_000_000  # characters of a text, and of a value written as one
MAX_WORK = 50_000_000  # of one evaluation: characters, and ten times the elements of lists
MAX_BITS = 20_000  # of a whole number
MAX_DIGITS = 1_000  # of a text that is read as a number
MAX_SET = 100  # characters that are trimmed
MAX_NAME = 10_000  # characters of a name of an attribute
MAX_PRECISION = 100

_ELEMENT = 10  # how much more an element of a list costs than a character

# Costs of filters and tests: only the call, the length of the arguments, their elements as Python iterates over
# them, or all their content.
_CALL, _LENGTH, _ELEMENTS, _CONTENT = "call", "length", "elements", "content"
FILTERS = {
    **dict.fromkeys("abs default first float int join last length round".split(), _CALL),
    **dict.fromkeys(
        "dictsort items list map max min reject rejectattr reverse select selectattr sort sum unique".split(), _ELEMENTS
    ),
    **dict.fromkeys("lower replace string title tojson trim upper".split(), _CONTENT),
}
TESTS = {
    **dict.fromkeys(
        "boolean defined divisibleby even false float integer iterable mapping none number odd sequence string true"
        " undefined".split(),
        _CALL,
    ),
    **dict.fromkeys("== != < <= > >= eq equalto ne lt lessthan le gt greaterthan ge in".split(), _LENGTH),
    **dict.fromkeys("lower upper".split(), _CONTENT),
}
TAKES_MISSING = frozenset(("default", "defined", "undefined"))
METHODS = frozenset(
    "startswith endswith lower upper strip lstrip rstrip split splitlines keys values items get count index find".split()
)


class ExpressionError(ValueError):
    """Error of an expression that is wrong, or has no value."""


class StepOutputs(dict[str, Any]):
    """Outputs of a step in an expression, which know why another one is missing. Expressions see no member of it."""

    def __init__(self, outputs: Mapping[str, Any], step: str, status: str) -> None:
        super().__init__(outputs)
        self._step = step
        self._status = status

    def _why_missing(self, name: str) -> str:
        """Return why there is no output of that name."""
        if self._status == "completed":
            there = f"it set: {_some(self)}" if self else "it set none"
            return f"step {self._step} set no output `{name}` ({there})"
        how = {"skipped": "was skipped", "failed": "failed", "interrupted": "was interrupted"}
        return f"step {self._step} {how.get(self._status, 'has not run yet')}, so it has no output `{name}`"


class _Budget:
    def __init__(self) -> None:
        self._left = MAX_WORK

    def pay(self, amount: int) -> None:
        self._left -= amount
        if self._left < 0:
            raise ExpressionError("the expression takes too much work")

    def counted(self, elements: Any) -> Iterator[Any]:
        """Yield elements that are paid for as they are made."""
        for element in elements:
            self.pay(_ELEMENT)
            yield element


_budget: ContextVar[_Budget] = ContextVar("_budget")


def evaluated(expression: str, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression, or an Undefined; raise any exception of the expression."""
    token = _budget.set(_Budget())
    try:
        value = _compiled(expression)(**names)
        if hasattr(value, "__iter__") and not isinstance(value, str | list | dict) and not is_undefined(value):
            value = list(value)  # generators and views that filters and methods return
        if isinstance(value, list | dict):
            weight(value)  # expressions can make much of little: [x, x, x, …]
        return value
    finally:
        _budget.reset(token)


def is_undefined(value: Any) -> bool:
    from jinja2 import Undefined

    return isinstance(value, Undefined)


def parsed(expression: str) -> Any:
    """Return the syntax tree of an expression, without evaluating anything."""
    return environment().parse("{{ (" + expression + ") }}")


@cache
def _compiled(expression: str) -> Callable[..., Any]:
    compiled: Callable[..., Any] = environment().compile_expression(expression, undefined_to_none=False)
    return compiled


@cache
def environment() -> Any:
    """Return the sandbox; imported on first use, because most pipelines start without it."""
    from jinja2 import StrictUndefined, Undefined, nodes
    from jinja2.compiler import CodeGenerator, Frame
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generator(CodeGenerator):
        def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - Jinja's name
            self.write("environment.joined((")
            for part in node.nodes:
                self.visit(part, frame)
                self.write(", ")
            self.write("))")

    class Missing(StrictUndefined):
        """Value of a name that is missing. A name behind it is missing too: `default` and `is defined` take either."""

        _is_behind = False  # another missing name

        @property
        def _undefined_message(self) -> str:
            if self._undefined_hint:
                return self._undefined_hint
            return _why_missing(self._undefined_obj, self._undefined_name)

        def __getattr__(self, name: str) -> Any:
            if name[:2] == "__":
                raise AttributeError(name)
            return self[name]

        def __getitem__(self, _name: Any) -> Any:
            missing = Missing(self._undefined_hint, self._undefined_obj, self._undefined_name, self._undefined_exception)
            missing._is_behind = True
            return missing

    class Sandbox(ImmutableSandboxedEnvironment):
        code_generator_class = Generator
        intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check_operands(operator, left, right)
            return super().call_binop(context, operator, left, right)

        def joined(self, parts: tuple[Any, ...]) -> str:
            return _joined(parts, "")

        def getattr(self, obj: Any, attribute: str) -> Any:
            # An output called `items` or `count` is that output, not a method of dictionaries.
            if isinstance(obj, Mapping) and attribute in obj:
                return obj[attribute]
            return super().getattr(obj, attribute)

        def is_safe_callable(self, obj: Any) -> bool:
            owner = getattr(obj, "__self__", None)
            return getattr(obj, "__name__", "") in METHODS and isinstance(owner, str | list | tuple | Mapping)

        def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(obj, Undefined):
                str(obj)  # raises the name that is missing
            if not self.is_safe_callable(obj):
                raise ExpressionError(f"`{getattr(obj, '__name__', type(obj).__name__)}` cannot be called here")
            _pay_for_method(obj, args)
            return super().call(context, obj, *args, **kwargs)

    sandbox = Sandbox(undefined=Missing, optimized=False)
    own = {"float": _float, "int": _int, "join": _join, "replace": _replace, "round": _round, "sum": _sum}
    own |= {"string": _string, "tojson": as_text, "trim": _trim}
    filters: dict[str, Any] = {**sandbox.filters, **own}
    sandbox.filters = {name: _paid(filters[name], cost, name) for name, cost in FILTERS.items()}
    tests: dict[str, Any] = dict(sandbox.tests)
    sandbox.tests = {name: _paid(tests[name], cost, name) for name, cost in TESTS.items()}
    sandbox.globals.clear()
    return sandbox


def _paid(function: Callable[..., Any], cost: str, name: str) -> Callable[..., Any]:
    """Wrap a filter or test so that it pays before it begins; lazy results are paid for as they are made.

    Only those that ask for it are given a name behind one that is missing.
    """
    skipped = 1 if hasattr(function, "jinja_pass_arg") else 0  # the argument that Jinja passes, not the expression

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        budget = _budget.get()
        budget.pay(_ELEMENT)
        given = (*args[skipped:], *kwargs.values())
        for value in given:
            if name not in TAKES_MISSING and getattr(value, "_is_behind", False):
                str(value)  # raises the name that is missing
            if cost == _CONTENT:
                budget.pay(weight(value))
            elif cost != _CALL and hasattr(value, "__len__") and not is_undefined(value):
                budget.pay(len(value) * (_ELEMENT if cost == _ELEMENTS else 1))
        if cost == _ELEMENTS and any(isinstance(value, str) and len(value) > MAX_NAME for value in given[1:]):
            raise ExpressionError(f"the name of an attribute has more than {MAX_NAME} characters")
        result = function(*args, **kwargs)
        return budget.counted(result) if hasattr(result, "__next__") else result

    return call


def weight(value: Any) -> int:
    """Return the approximate length of a value as text; raise ExpressionError if it is too long."""
    total, waiting = 0, [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, str):
            total += len(found)
        elif isinstance(found, Mapping):
            waiting += found.keys()
            waiting += found.values()
        elif isinstance(found, list | tuple):
            waiting += found
        elif isinstance(found, int):
            total += found.bit_length() // 3
        elif found is not None and is_undefined(found):
            str(found)  # raises the name that is missing
        total += 1
        if total + len(waiting) > MAX_TEXT:
            raise ExpressionError("the text is too long")
    return total


def _check_operands(operator: str, left: Any, right: Any) -> None:
    """Reject operations on anything but numbers, except adding texts or lists; raise ExpressionError."""
    if isinstance(left, int | float) and isinstance(right, int | float):
        if operator == "**" and (abs(right) > 1000 or abs(left) > 10**6):
            raise ExpressionError("the power is too large")
        if operator == "*" and _bits(left) + _bits(right) > MAX_BITS:
            raise ExpressionError("the number is too large")
        return
    if is_undefined(left) or is_undefined(right):
        return  # Jinja reports it
    if operator == "*":
        raise ExpressionError("text and lists cannot be multiplied")
    if operator == "%":
        raise ExpressionError("text cannot be formatted with %; use ~ to join")
    if operator == "+" and isinstance(left, str) and isinstance(right, str):
        _budget.get().pay(len(left) + len(right))
        if len(left) + len(right) > MAX_TEXT:
            raise ExpressionError("the text is too long")
    elif operator == "+" and isinstance(left, list | tuple) and isinstance(right, list | tuple):
        _budget.get().pay((len(left) + len(right)) * _ELEMENT)
    else:
        raise ExpressionError(f"{_kind(left)} {operator} {_kind(right)} cannot be calculated")


def _some(names: Mapping[str, Any]) -> str:
    shown = [str(name)[:40] for name in list(names)[:5]]
    return ", ".join(shown) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _why_missing(owner: Any, name: Any) -> str:
    """Return why a value has no member of that name."""
    name = name if isinstance(name, int) else str(name)[:100]
    if isinstance(owner, StepOutputs):
        return owner._why_missing(name)
    if isinstance(owner, Mapping):
        return f"there is no `{name}`" + (f" (there: {_some(owner)})" if owner else "")
    if isinstance(name, int) and isinstance(owner, list | tuple | str):
        return f"{_kind(owner)} of {len(owner)} has no element {name}"
    return f"{_kind(owner)} has no `{name}`"


def _bits(number: float) -> int:
    return number.bit_length() if isinstance(number, int) else 0


def _kind(value: Any) -> str:
    names = {str: "a text", bool: "a boolean", int: "a number", float: "a number", type(None): "null"}
    return names.get(type(value)) or ("an object" if isinstance(value, Mapping) else "a list")


def _pay_for_method(method: Any, args: tuple[Any, ...]) -> None:
    budget = _budget.get()
    for value in (method.__self__, *args):
        budget.pay(1 + (len(value) * _ELEMENT // 2 if hasattr(value, "__len__") else 0))
    if method.__name__.endswith("strip") and args and isinstance(args[0], str) and len(args[0]) > MAX_SET:
        raise ExpressionError(f"at most {MAX_SET} different characters can be stripped")


# Filters of our own, where Jinja's have no bounds.


def as_text(value: Any) -> str:
    """Return a value as text: a text as it is, everything else as JSON."""
    if isinstance(value, str):
        return value
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError) as error:
        raise ExpressionError(f"the value cannot be written as text: {error}") from None


def _string(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _joined(parts: Any, between: str) -> str:
    budget, texts, size = _budget.get(), [], 0
    for part in parts:
        size += weight(part) + len(between)
        budget.pay(_ELEMENT)
        if size > MAX_TEXT:
            raise ExpressionError("the text is too long")
        texts.append(_string(part))
    budget.pay(size)
    return between.join(texts)


def _join(value: Any, d: str = "", attribute: str | int | None = None) -> str:
    from jinja2.filters import make_attrgetter

    if attribute is not None:
        value = map(make_attrgetter(environment(), attribute), value)
    return _joined(value, _string(d))


def _replace(value: Any, old: str, new: str) -> str:
    text = _string(value)
    if text.count(old) * len(new) + len(text) > MAX_TEXT:
        raise ExpressionError("the text is too long")
    return text.replace(old, new)


def _trim(value: Any, chars: str | None = None) -> str:
    if chars is not None and len(chars) > MAX_SET:
        raise ExpressionError(f"at most {MAX_SET} different characters can be trimmed")
    return _string(value).strip(chars)


def _round(value: Any, precision: int = 0, method: str = "common") -> float:
    """Round as Jinja does, with a bounded precision: it is an exponent."""
    if method not in ("common", "ceil", "floor"):
        raise ExpressionError("the method of `round` is common, ceil or floor")
    if not isinstance(precision, int) or abs(precision) > MAX_PRECISION:
        raise ExpressionError(f"`round` has a precision of at most {MAX_PRECISION} digits")
    if not isinstance(value, int | float) or _bits(value) > MAX_BITS:
        raise ExpressionError("only a number can be rounded")
    if method == "common":
        return round(value, precision)
    scale = 10**precision
    return float((math.ceil if method == "ceil" else math.floor)(value * scale) / scale)


def _int(value: Any, default: int = 0, base: int = 10) -> int:
    """Convert as Jinja does, for texts of the length of a number."""
    try:
        if isinstance(value, str):
            if len(value) > MAX_DIGITS:
                raise ExpressionError(f"a number has at most {MAX_DIGITS} digits")
            return int(value, base)
        return int(value)
    except (TypeError, ValueError) as error:
        if isinstance(error, ExpressionError):
            raise
        return _whole(value, default)


def _whole(value: Any, default: int) -> int:
    try:
        return int(float(value))  # as in '12.5'
    except (TypeError, ValueError, OverflowError):
        return default


def _float(value: Any, default: float = 0.0) -> float:
    if isinstance(value, str) and len(value) > MAX_DIGITS:
        raise ExpressionError(f"a number has at most {MAX_DIGITS} digits")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return default


def _sum(value: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
    """Add numbers; lists are not added, which would take a time in the square of their number."""
    from jinja2.filters import make_attrgetter

    if attribute is not None:
        value = map(make_attrgetter(environment(), attribute), value)
    total = start
    for number in value:
        _budget.get().pay(_ELEMENT)
        if not isinstance(number, int | float) or not isinstance(total, int | float):
            if is_undefined(number):
                str(number)  # raises the name that is missing
            raise ExpressionError("only numbers can be summed")
        total += number
        if _bits(total) > MAX_BITS:
            raise ExpressionError("the number is too large")
    return total
