"""Keys of other tools, and the names they have here."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

from rerail.text import nearest

# Each with the keys that may be meant, in the order in which they are tried: only those that exist at the place count.
_SYNONYMS = {
    "when": "if only_if condition preconditions onlyif only rules",
    "needs": "depends_on depends dependencies dependson after requires dependency upstream need deps",
    "run": "script shell command cmd bash sh exec commands cmds action execute command_line entrypoint",
    "map": "foreach for_each matrix with_items each strategy parallel_for for fan_out",
    "steps": "tasks jobs commands do body stages dag nodes workflow job cmds",
    "loop": "repeat goal_seek repeat_policy until_loop retry_until",
    "allow_failure": "continue_on_error continue_on ignore_errors ignore_error ignore_failure allow_fail can_fail"
    " continueon failfast",
    "cwd": "working_directory working_dir workdir dir directory workingdir chdir work_dir folder pwd",
    "outputs": "capture capture_output output register results result set_output",
    "timeout": "timeout_sec timeout_secs timeout_seconds timeout_minutes time_limit max_time deadline"
    " activedeadlineseconds agent_timeout_secs timeoutsec",
    "parallel": "max_parallel max_concurrency concurrency maxactivesteps max_workers max_active_steps jobs parallelism"
    " max_concurrent threads",
    "params": "inputs parameters vars variables args arguments input param arguments_schema",
    "env": "environment envs env_vars vars variables",
    "retry": "retries retry_policy retrypolicy retry_config max_retries retrystrategy on_retry",
    "attempts": "max_attempts max limit retries max_retries tries count times",
    "delay": "interval interval_sec wait sleep initial_delay pause backoff_seconds",
    "on_failure": "on_error rescue catch failure handler_on onfailure fallback",
    "finally": "always after_all on_exit onexit handler_on handlers teardown cleanup post",
    "artifacts": "generates produces creates files targets artifact output outputs",
    "inputs": "sources watches input dependencies",
    "with": "args arguments params kwargs parameters with_params inputs",
    "approve": "approval manual gate human confirm wait_for_approval input suspend",
    "pipeline": "workflow call uses include include_file sub_workflow subworkflow template file import",
    "python": "function callable py module",
    "write": "write_file file create_file",
    "over": "items in list input source values with_items",
    "max_iterations": "max_attempts limit iterations max times max_retries attempts",
    "max_failures": "max_errors failure_threshold continue_on_failure failures max_fail",
    "on_item_failure": "error_policy on_failure on_error",
    "filter": "where select if when",
    "sort": "sort_by order_by order",
    "limit": "max_items max count take",
    "until": "condition stop_when stop_if break_when",
    "while": "if condition",
    "key": "id name item_key unique",
    "contains": "must_contain includes required_text has",
    "format": "type as",
    "id": "step_id label_id step uid",
    "name": "title display_name label description",
    "checks": "validate validation check assert asserts tests",
    "budget": "max_cost cost_limit limits cost",
    "secrets": "secret credentials sensitive",
    "default": "value default_value",
    "choices": "enum options values allowed",
    "required": "mandatory",
    "type": "kind",
    "labels": "tags metadata annotations label",
    "defaults": "default",
    "command": "run cmd script shell",
}


def meant(key: str, names: Collection[str]) -> str:
    """Return the key that was probably meant, or '': the same word of another tool, else one spelled alike."""
    plain = _plain(key)
    for name in names:
        if _plain(name) == plain:
            return name
    for name in _meanings().get(plain, ()):
        if name in names:
            return name
    return nearest(key, names)


@cache
def _meanings() -> dict[str, list[str]]:
    """Return the keys that a word of another tool may mean."""
    meanings: dict[str, list[str]] = {}
    for name, words in _SYNONYMS.items():
        for word in words.split():
            meanings.setdefault(_plain(word), []).append(name)
    return meanings


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
