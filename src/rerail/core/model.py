"""The model of a pipeline: its steps, params, artifacts and policies, as validated and frozen values.

An `Action` is the work of one attempt. A new kind of step is a new action struct; everything around
it (needs, retry, timeout, journal, resume) is shared.
"""

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from rerail.core.unit_id import local_step

MAX_CRASHES = 5
Backoff = Literal["fixed", "linear", "exponential"]


class Retry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Retry policy of a step: the number of attempts, and the waits between them."""

    attempts: int = 1  # all attempts, the first included
    backoff: Backoff = "exponential"
    delay: float = 1.0  # seconds
    max_delay: float = 60.0
    jitter: bool = True
    on: tuple[str | int, ...] = ()  # `rate_limit`, `timeout`, exit codes, patterns on stderr; empty: anything


Refusal = Literal["quota", "overloaded", "rate limit"]  # why a service refuses a request for now


class RateLimit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rate-limit policy of a step: how a refusal by a service is recognised, and the longest wait for one."""

    recognised: bool = True
    on: tuple[str | int, ...] = ()  # exit codes and patterns on stderr, in addition to the built-in table
    pause_after: float = 300.0  # longest wait in seconds; the run pauses for longer ones


class Run(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="run"):
    """Action that executes a shell script."""

    script: str


class Python(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="python", omit_defaults=True):
    """Action that calls `module:function` in a child process."""

    target: str
    arguments: dict[str, Any] = {}


class Write(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="write", omit_defaults=True):
    """Action that writes a file with the given content."""

    path: str
    content: str
    mode: str = ""  # octal permissions; '': those of any new file


class Call(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="call"):
    """Action that calls a function of the running process, looked up by name when the attempt starts."""

    target: str


class Approve(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="approve"):
    """Action that asks a person a question and waits for the answer."""

    message: str


class Source(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Source of the items of a map."""

    kind: Literal["list", "expression", "glob", "lines", "json", "command"]
    value: Any
    path: str = ""  # into a JSON document; '': the document itself is the list
    form: Literal["lines", "json"] = "lines"  # of the command's stdout
    directory: str = ""  # of the file that declares it, relative to the pipeline's: paths are relative to it


class Map(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="map", omit_defaults=True):
    """Action that executes the same steps for every item of a list."""

    over: Source
    steps: tuple["Step", ...]
    single: bool = False  # the body is one plain step, which is then the item: it has the map's own id
    key: str = ""
    filter: str = ""
    sort: str = ""
    limit: int | str | None = None
    offset: int | str = 0
    min_items: int = 0
    parallel: int = 0  # 0: as wide as the run
    max_failures: int = 0
    max_failures_percent: float | None = None
    on_item_failure: Literal["dlq", "stop", "skip"] = "dlq"
    item_budget: "Budget | None" = None  # for each item


class Loop(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="loop", omit_defaults=True):
    """Action that repeats the same steps; each iteration sees the outputs of the one before."""

    steps: tuple["Step", ...]
    max_iterations: int
    until: str = ""
    while_: str = ""
    delay: float = 0.0
    stop_if_no_progress: int = 0


class Subpipeline(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="pipeline", omit_defaults=True):
    """Action that executes the steps of another pipeline file as one step."""

    path: str
    steps: tuple["Step", ...]
    arguments: dict[str, Any] = {}
    params: dict[str, "Param"] = {}
    outputs: dict[str, Any] = {}
    finally_: tuple["Step", ...] = ()
    budget: "Budget | None" = None  # the file's own, for all its steps


Controller = Map | Loop | Subpipeline  # does no work itself: executes other steps
CONTROLLERS = (Map, Loop, Subpipeline)
Action = Run | Python | Write | Call | Approve | Map | Loop | Subpipeline


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """Output that is captured from the stdout of a step."""

    form: Literal["text", "json", "lines"] = "text"


class Artifact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """File, directory or pattern that a step produces or reads, and the checks of its content."""

    path: str  # relative to the pipeline's directory
    min_size: int | None = None
    max_size: int | None = None
    contains: tuple[str, ...] = ()
    not_contains: tuple[str, ...] = ()
    format: Literal["", "json", "yaml", "toml", "csv"] = ""
    schema: str = ""  # path of a JSON Schema
    optional: bool = False
    temporary: bool = False  # not needed once its consumers are done
    keep: bool | int | None = None  # in the content store: always, never, up to so many bytes; None: up to a default
    external: bool = False  # may be outside the project

    @property
    def has_checks(self) -> bool:
        """Whether any size, text, format or schema is required of the content."""
        sized = self.min_size is not None or self.max_size is not None
        return sized or bool(self.contains or self.not_contains or self.format or self.schema)


class Budget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits on the cost, tokens and time of a run, a step or an item, over all invocations.

    Once one is reached, nothing new of it starts.
    """

    cost_usd: float | None = None
    tokens: int | None = None
    time: float | None = None  # seconds: of a run while it is executed, else the durations of the attempts
    on_exceed: Literal["finish", "stop"] = "finish"  # whether running attempts may finish


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Node of a pipeline. `needs` is resolved: the default "the previous step" is written out."""

    id: str
    action: Action
    name: str = ""
    needs: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str = ""
    timeout: float | None = None  # seconds
    retry: Retry = Retry()
    rate_limit: RateLimit = RateLimit()
    budget: Budget | None = None  # for all its attempts, and all steps inside it
    allow_failure: bool = False
    idempotent: bool = True
    when: str = ""
    checks: tuple[str, ...] = ()  # commands that must pass after it
    outputs: dict[str, Capture] = {}
    commit_required: bool = False
    inputs: tuple[Artifact, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    on_failure: tuple["Step", ...] = ()
    dynamic: bool = False  # whether any of its texts holds an expression
    line: int = 0  # line in the file, for messages

    @property
    def command(self) -> str:
        """The action as one recognisable string."""
        match self.action:
            case Run(script=script):
                return script.strip()
            case Python(target=target):
                return f"python {target}"
            case Write(path=path):
                return f"write {path}"
            case Call(target=target):
                return f"call {target}"
            case Approve(message=message):
                return f"approve: {message}"
            case Map(over=over, steps=steps):
                return f"map over {over.kind}: {', '.join(step.command for step in steps[:3])}"
            case Loop(max_iterations=most, until=until):
                return f"loop, at most {most} times" + (f", until {until}" if until else "")
            case Subpipeline(path=path):
                return f"pipeline {path}"

    @property
    def local(self) -> str:
        """The last part of the id: the step's name among the steps of the same body."""
        return local_step(self.id)

    @property
    def body(self) -> tuple["Step", ...]:
        """The steps of a map, loop or subpipeline; empty for any other action."""
        return self.action.steps if isinstance(self.action, Map | Loop | Subpipeline) else ()

    @property
    def is_controller(self) -> bool:
        return isinstance(self.action, CONTROLLERS)


class Param(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameter of a pipeline, given when a run starts."""

    type: Literal["string", "integer", "number", "boolean", "path", "list"] = "string"
    required: bool = False
    default: Any = None
    choices: tuple[Any, ...] = ()
    description: str = ""


class CheckpointPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Policy of snapshots, and of a journal that cannot be written."""

    interval: float = 30.0  # seconds
    history: int = 20
    on_error: Literal["stop", "warn"] = "stop"


class Concurrency(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Group of runs of which one is executed at a time, and the behaviour of a run if another one is."""

    group: str  # may hold expressions
    on_conflict: Literal["refuse", "wait", "stop_other"] = "refuse"


class Pipeline(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Declared pipeline: validated, acyclic, every name resolved."""

    name: str
    steps: tuple[Step, ...]
    params: dict[str, Param] = {}
    env: dict[str, str] = {}
    labels: dict[str, str] = {}
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    finally_: tuple[Step, ...] = ()
    secrets: tuple[str, ...] = ()  # names of variables whose values are masked everywhere
    outputs: dict[str, Any] = {}  # its outputs as a step of another pipeline
    budget: Budget | None = None
    concurrency: Concurrency | None = None
    max_crashes: int = MAX_CRASHES  # in a row, of one step, before the run is paused

    @property
    def hooks(self) -> tuple[str, ...]:
        """Ids of the `on_failure` steps and of the `finally` steps."""
        cleaning = (hook.id for step in self.steps for hook in step.on_failure)
        return (*cleaning, *(hook.id for hook in self.finally_))

    @property
    def has_controllers(self) -> bool:
        """Whether any top-level step is a map, a loop or a subpipeline."""
        return any(isinstance(step.action, CONTROLLERS) for step in self.steps)

    @property
    def has_approvals(self) -> bool:
        """Whether any step, at any depth, waits for an approval."""
        if not self.has_controllers:
            return any(isinstance(step.action, Approve) for step in self.steps)
        return any(isinstance(step.action, Approve) for _, step in every_step(self))

    @property
    def type(self) -> Literal["standard", "iterative", "mapreduce"]:
        """The type of the pipeline in the words of other tools."""
        if not self.has_controllers:
            return "standard"
        kinds = {type(step.action) for _, step in every_step(self)}
        return "mapreduce" if Map in kinds else "iterative" if Loop in kinds else "standard"


def every_step(pipeline: Pipeline) -> Iterator[tuple[int, Step]]:
    """Yield every step at any depth, hooks included, with the number of maps and loops around it."""
    return _every((*pipeline.steps, *pipeline.finally_), 0)


def _every(steps: tuple[Step, ...], depth: int) -> Iterator[tuple[int, Step]]:
    for step in steps:
        yield depth, step
        if step.on_failure:
            yield from _every(step.on_failure, depth)
        match step.action:
            case Map(steps=body) | Loop(steps=body):
                yield from _every(body, depth + 1)
            case Subpipeline(steps=body, finally_=last):
                yield from _every((*body, *last), depth)
            case _:
                pass


class RunOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options of a run: recorded, and in force on resume unless given again."""

    parallel: int = 1
    fail_fast: bool = False
    secrets: tuple[str, ...] = ()  # names, in addition to the pipeline's
    budget_usd: float | None = None  # instead of the pipeline's
    max_runtime: float | None = None  # seconds that one invocation may take


class RunHeader(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Header of a run (run.json): the pipeline, the params and the options it was started with."""

    format: int
    run_id: str
    pipeline: str
    pipeline_path: str
    work_dir: str
    created_at: str
    rerail: str
    params: dict[str, Any] = {}
    labels: dict[str, str] = {}
    options: RunOptions = RunOptions()
    parent: str = ""  # the run it was forked from
    concurrency: str = ""  # its concurrency group when it was created
    pipeline_type: Literal["standard", "iterative", "mapreduce"] = "standard"
