"""Did the definition of a step change? Comments, formatting and names of things do not count."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from rerail.core.model import Action, Inner, Loop, Map, Run, Step

DIGEST_CHARS = 16

_encode = msgspec.json.Encoder(order="deterministic").encode


def fingerprint(step: Step, pipeline_env: Mapping[str, str]) -> str:
    """A digest of what an attempt of this step would do: action, environment, directory.

    How often it is retried, how long it may take and what it waits for change when it runs, not what it
    does, so they are left out.
    """
    canonical = _encode([_normalised(step.action, pipeline_env), {**pipeline_env, **step.env}, step.cwd, _extras(step)])
    digest = hashlib.sha256(canonical).hexdigest()[:DIGEST_CHARS]
    if isinstance(step.action, Map):
        made_of = step.action
        source = _encode([made_of.over, made_of.key, made_of.filter, made_of.sort, made_of.limit, made_of.offset])
        digest += "." + hashlib.sha256(source).hexdigest()[:DIGEST_CHARS]
    return digest


def same_body(first: str, second: str) -> bool:
    """Whether two fingerprints of a map differ at most in what it fans out over."""
    return "." in first and first.partition(".")[0] == second.partition(".")[0]


def _extras(step: Step) -> list[object]:
    """What else decides whether and how it completes; empty for most steps."""
    extras: list[object] = []
    if step.when or step.checks or step.outputs or step.commit_required:
        extras = [step.when, step.checks, step.outputs, step.commit_required]
    if step.artifacts or step.inputs:
        # What is asked of their content is asked again on resume; which they are is part of what the step is.
        extras += [[made.path for made in step.artifacts], [read.path for read in step.inputs]]
    return extras


def _normalised(action: Action, env: Mapping[str, str]) -> object:
    if isinstance(action, Run):
        # White space around a script comes from YAML block styles; inside it may matter to the shell.
        return Run(script=action.script.strip())
    if isinstance(action, Map | Loop | Inner):
        # Its body; how wide, how often and how many failures are allowed change when it ends, not what it does.
        body = [[step.id, fingerprint(step, env), step.needs] for step in action.steps]
        match action:
            case Loop(until=until, while_=while_):
                return ["loop", body, until, while_]
            case Inner(arguments=arguments, outputs=outputs):
                return ["pipeline", body, arguments, outputs]
            case _:
                return ["map", body]
    return action
