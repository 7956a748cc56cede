"""Identity of a unit, `UnitId`, and the two paths it consists of. Only this module knows how the paths are written.

A step path names a step by the steps around it, `polish/edit`. An item path names an instance by the key of every map
item and the number of every loop iteration around it, outermost first, `section-11::2`; it is None outside all of them.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

_STEP: Final = "/"
_ITEM: Final = "::"


class UnitId(NamedTuple):
    """Identity of a unit: the path of its step, and the path of the instance that it belongs to.

    An item or iteration has the step path of its controller, the map or loop, and an item path of its own.
    """

    step: str
    item: str | None = None

    def __str__(self) -> str:
        """Return the name for people: `polish/edit`, or `polish/edit[section-11]`."""
        return self.step if self.item is None else f"{self.step}[{self.item}]"

    @classmethod
    def parse(cls, text: str) -> "UnitId":
        """Return the unit of a name that `str` made."""
        step, _, item = text.partition("[")
        return cls(step, item[:-1]) if step and item.endswith("]") else cls(text)

    @property
    def is_top_level(self) -> bool:
        """Whether no map, loop or subpipeline is around the unit."""
        return self.item is None and _STEP not in self.step

    @property
    def key(self) -> str:
        """Key of the innermost item or iteration around the unit, itself included; '' outside all of them."""
        return "" if self.item is None else item_key(self.item)

    @property
    def depth(self) -> int:
        """Number of maps and loops around the unit; of an item or iteration, its own controller included."""
        return item_depth(self.item)

    @property
    def controller(self) -> "UnitId":
        """Map or loop that an item or iteration belongs to."""
        assert self.item is not None
        return tuple.__new__(UnitId, (self.step, outer_item(self.item)))  # for every event of an item: the short way

    def child(self, key: str) -> "UnitId":
        """Return an item of a map by its escaped key."""
        return UnitId(self.step, join_item(self.item, key))

    def iteration(self, number: int) -> "UnitId":
        """Return an iteration of a loop by its number, counted from 1."""
        return UnitId(self.step, join_item(self.item, str(number)))

    def is_item_of(self, controller: "UnitId") -> bool:
        """Return whether this is an item or iteration of a controller."""
        return self.step == controller.step and self.item is not None and outer_item(self.item) == controller.item

    def is_within(self, other: "UnitId") -> bool:
        """Return whether this is an item, an iteration or a step inside another unit, or that unit itself."""
        return is_step_within(self.step, other.step) and is_item_within(self.item, other.item)

    def key_within(self, controller: "UnitId") -> str:
        """Return the key of the item of a controller that this is, or is inside of; '' if it is inside none."""
        return "" if self.item is None else key_within(self.item, controller.item)

    def ancestors(self) -> Iterator["UnitId"]:
        """Yield the units that may be around this one, innermost first; some of them do not exist."""
        for step in (self.step, *steps_around(self.step)):
            if step != self.step:
                yield UnitId(step, self.item)
            yield from (UnitId(step, item) for item in items_around(self.item))


def step_path(outer: str, step: str) -> str:
    """Return the path of a step in the body of another; `outer` is '' for a step of the pipeline itself."""
    return f"{outer}{_STEP}{step}" if outer else step


def outer_step(step: str) -> str:
    """Return the path of the step around a step; '' if there is none."""
    return step.rpartition(_STEP)[0]


def local_step(step: str) -> str:
    """Return the name of a step within its body."""
    return step.rpartition(_STEP)[2]


def top_step(step: str) -> str:
    """Return the step of the pipeline itself that a step is, or is inside of."""
    return step.partition(_STEP)[0]


def step_depth(step: str) -> int:
    """Return the number of steps around a step."""
    return step.count(_STEP)


def steps_around(step: str) -> Iterator[str]:
    """Yield the paths of the steps around a step, innermost first."""
    while step := outer_step(step):
        yield step


def is_step_within(step: str, outer: str) -> bool:
    """Return whether a step is another step, or is inside of it."""
    return step == outer or step.startswith(outer + _STEP)


def step_within(step: str, outer: str) -> str:
    """Return the path of a step as seen from a step around it; '' if it is not inside of that one."""
    return step[len(outer) + len(_STEP) :] if step.startswith(outer + _STEP) else ""


def ancestor_step(step: str, depth: int) -> str:
    """Return the step around a step that has `depth` steps around itself; the step itself if it is not that deep."""
    return _STEP.join(step.split(_STEP, depth + 1)[: depth + 1])


def escape_key(key: str) -> str:
    """Return a key as it stands in item paths: it cannot be taken for several keys."""
    if _ITEM in key or key.startswith(":") or key.endswith(":") or "%3A" in key or "%25" in key:
        return key.replace("%", "%25").replace(":", "%3A")
    return key


def join_item(outer: str | None, key: str) -> str:
    """Return the path of an item, by its escaped key, below the instance that its controller is in."""
    return key if outer is None else f"{outer}{_ITEM}{key}"


def outer_item(item: str) -> str | None:
    """Return the instance that the controller of an item is in; None at the top level."""
    outer, found, _ = item.rpartition(_ITEM)
    return outer if found else None


def item_key(item: str) -> str:
    """Return the escaped key of an item."""
    return item.rpartition(_ITEM)[2]


def item_depth(item: str | None) -> int:
    """Return the number of maps and loops that an instance is in."""
    return 0 if item is None else item.count(_ITEM) + 1


def items_around(item: str | None) -> Iterator[str | None]:
    """Yield the instances around an instance, innermost first; the last one is None."""
    while item is not None:
        item = outer_item(item)
        yield item


def is_item_within(item: str | None, outer: str | None) -> bool:
    """Return whether an instance is another instance, or is inside of it."""
    return outer is None or item == outer or (item is not None and item.startswith(outer + _ITEM))


def ancestor_item(item: str | None, depth: int) -> str | None:
    """Return the instance around an instance that is in `depth` maps and loops."""
    return None if item is None or not depth else _ITEM.join(item.split(_ITEM, depth)[:depth])


def item_within(item: str, outer: str | None) -> str:
    """Return the path of an instance as seen from an instance around it; '' if it is not inside of that one."""
    if outer is None:
        return item
    return item[len(outer) + len(_ITEM) :] if item.startswith(outer + _ITEM) else ""


def key_within(item: str, outer: str | None) -> str:
    """Return the key of the outermost item around an instance that is inside another instance; '' if there is none."""
    return item_within(item, outer).partition(_ITEM)[0]
