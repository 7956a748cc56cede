"""The JSON Schema (draft-07) of a pipeline file, for completion and checks in editors.

Built from the same lists of keys that the loader accepts; checks that need the whole file (cycles, names in expressions)
are not in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rerail.loaders.actions import FORMS, KINDS, MODE, OPTIONS, STREAMS, WRITE_KEYS
from rerail.loaders.artifacts import FORMATS, KEYS, ONLY_MADE
from rerail.loaders.composites import LOOP_KEYS, MAP_KEYS
from rerail.loaders.steps import DEFAULTABLE
from rerail.loaders.yaml import ON_CONFLICT, TOP

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"type": "boolean"}
_SCALAR: Schema = {"type": ["string", "number", "boolean"]}
_NAMES: Schema = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}
_TEXTS: Schema = {"type": "object", "additionalProperties": _SCALAR}
_DURATION_PATTERN = r"^(\d+(\.\d+)?h)?(\d+(\.\d+)?m)?(\d+(\.\d+)?s)?(\d+(\.\d+)?ms)?$"
_DURATION: Schema = {
    "description": "Seconds, or a text such as 200ms, 30s, 5m or 1h30m.",
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": _DURATION_PATTERN},
    ],
}
_ID: Schema = {"type": "string", "pattern": r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"}


def _closed(properties: Schema, **more: Any) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


_RETRY: Schema = {
    "description": "How often a failing attempt is repeated.",
    "anyOf": [
        {"type": "integer", "minimum": 1},
        _closed(
            {
                "attempts": {"type": "integer", "minimum": 1},
                "backoff": {"enum": ["fixed", "linear", "exponential"]},
                "delay": _DURATION,
                "max_delay": _DURATION,
                "jitter": _FLAG,
                "on": {
                    "description": "rate_limit, timeout, exit codes, or patterns on stderr.",
                    "items": {"type": ["string", "integer"]},
                },
            }
        ),
    ],
}
_BUDGET: Schema = _closed(
    {
        "cost_usd": {"type": "number", "exclusiveMinimum": 0},
        "tokens": {"type": "integer", "minimum": 1},
        "time": _DURATION,
        "on_exceed": {"enum": ["finish", "stop"]},
    }
)
_SIZE: Schema = {
    "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^[0-9.]+ ?([kKMGT]i?)?B?$"}]
}
_ARTIFACT_PROPERTIES: Schema = {
    "path": {**_TEXT, "description": "A file, a directory or a pattern, relative to the pipeline's directory."},
    "min_size": {**_SIZE, "description": "0: it may be empty."},
    "max_size": _SIZE,
    "contains": {**_NAMES, "description": "Texts that must be in it."},
    "not_contains": {**_NAMES, "description": "Texts that must not."},
    "format": {"enum": list(FORMATS)},
    "schema": {**_TEXT, "description": "The path of a JSON Schema it must fit."},
    "optional": _FLAG,
    "temporary": {**_FLAG, "description": "Not needed once its consumers are done."},
    "keep": {"description": "In the content store: always, never, or up to a size.", "anyOf": [_FLAG, _SIZE]},
    "external": {**_FLAG, "description": "It may be outside the project."},
}


def _artifacts(keys: Iterable[str]) -> Schema:
    one = {"anyOf": [_TEXT, _closed({key: _ARTIFACT_PROPERTIES[key] for key in keys}, required=["path"])]}
    return {"anyOf": [one, {"type": "array", "items": one}]}


_WRITE_PROPERTIES: Schema = {
    "path": _SCALAR,
    "content": _SCALAR,
    "mode": {"type": "string", "pattern": f"^{MODE}$", "description": "Octal permissions, such as 0755."},
}
_STEP_PROPERTIES: Schema = {
    "inputs": {
        **_artifacts(key for key in KEYS if key not in ONLY_MADE),
        "description": "What the step reads; if it changes, the step reruns.",
    },
    "artifacts": {**_artifacts(KEYS), "description": "What the step produces: verified on resume, restored or rebuilt."},
    "id": _ID,
    "name": _TEXT,
    "needs": {**_NAMES, "description": "Steps that must be done first; by default the previous one."},
    "when": {"type": ["string", "boolean"], "description": "An expression; the step is skipped if it is false."},
    "env": _TEXTS,
    "cwd": _TEXT,
    "timeout": _DURATION,
    "retry": _RETRY,
    "outputs": {
        "type": "object",
        "additionalProperties": {
            "anyOf": [
                {"enum": list(STREAMS), "description": "The whole output, as one text."},
                _closed({"from": {"const": "stdout"}, "as": {"enum": list(FORMS)}}),
            ]
        },
    },
    "checks": {**_NAMES, "description": "Commands that must pass after the step."},
    "idempotent": {**_FLAG, "description": "false: never rerun automatically after an interruption."},
    "allow_failure": _FLAG,
    "on_failure": {"$ref": "#/definitions/steps"},
    "commit_required": {**_FLAG, "description": "The step fails if HEAD has not moved."},
    "run": {"type": ["string", "number"], "description": "A shell script."},
    "python": {"type": "string", "pattern": r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$", "description": "module:function"},
    "with": {"type": "object", "description": "Arguments of the function."},
    "write": _closed({key: _WRITE_PROPERTIES[key] for key in WRITE_KEYS}, required=["path"]),
    "approve": {
        "description": "A question to approve or reject before the run continues.",
        "anyOf": [_TEXT, _closed({"message": _TEXT}, required=["message"])],
    },
    "budget": {**_BUDGET, "description": "For all attempts of the step and everything inside it."},
    "rate_limit": {
        "description": "More signs of a rate limit, and the wait from which on the run is paused.",
        "anyOf": [
            {"const": False},
            _closed({"on": {"items": {"type": ["string", "integer"]}}, "pause_after": _DURATION}),
        ],
    },
}
_CONDITION: Schema = {"type": ["string", "boolean"], "description": "An expression."}
_AMOUNT: Schema = {"anyOf": [{"type": "integer", "minimum": 0}, _TEXT]}
_SOURCE: Schema = {
    "description": "A list, an expression that evaluates to a list, or a source.",
    "anyOf": [
        {"type": "array"},
        {"type": "string", "pattern": r"\$\{\{"},
        _closed({"glob": {**_TEXT, "description": "Paths that match."}}, required=["glob"]),
        _closed({"lines": {**_TEXT, "description": "The lines of a file."}}, required=["lines"]),
        _closed({"json": _TEXT, "path": {**_TEXT, "description": "A JSONPath."}}, required=["json"]),
        _closed({"command": _TEXT, "as": {"enum": ["lines", "json"]}}, required=["command"]),
    ],
}
_MAP_PROPERTIES: Schema = {
    "over": _SOURCE,
    "key": {**_TEXT, "description": "The key of an item."},
    "filter": {**_CONDITION, "description": "Only items for which this expression is true."},
    "sort": {**_CONDITION, "description": "An expression to sort the items by."},
    "limit": _AMOUNT,
    "offset": _AMOUNT,
    "min_items": {"type": "integer", "minimum": 0, "description": "The map fails if there are fewer."},
    "parallel": {"type": "integer", "minimum": 1, "description": "How many items in parallel."},
    "max_failures": {
        "description": "How many items may fail: a count or a share such as 10%.",
        "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^[0-9.]+%$"}],
    },
    "on_item_failure": {"enum": ["dlq", "stop", "skip"]},
    "item_budget": {**_BUDGET, "description": "For each item."},
}
_LOOP_PROPERTIES: Schema = {
    "max_iterations": {"type": "integer", "minimum": 1},
    "until": {**_CONDITION, "description": "Ends the loop when true after an iteration."},
    "while": {**_CONDITION, "description": "Ends the loop when false before an iteration."},
    "delay": _DURATION,
    "stop_if_no_progress": {"type": "integer", "minimum": 1},
}
_STEP_PROPERTIES |= {
    "map": {
        **_closed({key: _MAP_PROPERTIES[key] for key in MAP_KEYS}, required=["over"]),
        "description": "The steps for every item of a list.",
    },
    "loop": {
        **_closed({key: _LOOP_PROPERTIES[key] for key in LOOP_KEYS}, required=["max_iterations"]),
        "description": "The steps of each iteration.",
    },
    "pipeline": {**_TEXT, "description": "The path of another pipeline file."},
    "steps": {"$ref": "#/definitions/steps"},
}
_PARAM: Schema = {
    "anyOf": [
        {"type": ["string", "number", "boolean", "null", "array"]},
        _closed(
            {
                "type": {"enum": ["string", "integer", "number", "boolean", "path", "list"]},
                "required": _FLAG,
                "default": {},
                "choices": {"type": "array"},
                "description": _TEXT,
            }
        ),
    ]
}
_TOP_PROPERTIES: Schema = {
    "name": {"type": ["string", "number"]},
    "labels": _TEXTS,
    "params": {"type": "object", "additionalProperties": _PARAM},
    "env": _TEXTS,
    "secrets": {**_NAMES, "description": "Names of variables whose values are masked everywhere."},
    "defaults": _closed({key: _STEP_PROPERTIES[key] for key in DEFAULTABLE}),
    "checkpoint": _closed(
        {"interval": _DURATION, "history": {"type": "integer", "minimum": 0}, "on_error": {"enum": ["stop", "warn"]}}
    ),
    "budget": _BUDGET,
    "concurrency": {
        "description": "Group of runs of which one is executed at a time.",
        "anyOf": [
            _TEXT,
            _closed({"group": _TEXT, "on_conflict": {"enum": list(ON_CONFLICT)}}, required=["group"]),
        ],
    },
    "max_crashes": {
        "type": "integer",
        "minimum": 1,
        "description": "Crashes of rerail in a row during one step, after which the run is paused.",
    },
    "outputs": {"type": "object", "description": "Its outputs as a step of another pipeline."},
    "steps": {"$ref": "#/definitions/steps"},
    "finally": {"$ref": "#/definitions/steps"},
}


def schema() -> Schema:
    """Return the whole schema."""
    step = _closed(
        {key: _STEP_PROPERTIES[key] for key in (*OPTIONS, *KINDS, "with", "steps")},
        oneOf=[{"required": [kind]} for kind in KINDS],
    )
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "rerail pipeline",
        **_closed({key: _TOP_PROPERTIES[key] for key in TOP}, required=["steps"]),
        "definitions": {"steps": {"type": "array", "minItems": 1, "items": step}},
    }
