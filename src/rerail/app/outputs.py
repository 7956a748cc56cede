"""Outputs of a run: those that its pipeline declares, evaluated once it is completed."""

from __future__ import annotations

from typing import Any

import msgspec

from rerail.app.masking import secrets_of
from rerail.app.planning import scope_of
from rerail.core.expressions import language
from rerail.ports import LoadedRun, Store


def outputs_of(store: Store, recording: LoadedRun) -> dict[str, Any]:
    """Return the outputs of a run without secrets; none unless it is completed. Raise ExpressionError."""
    if recording.state.status != "completed":
        return {}
    from rerail.loaders.yaml import load_pipeline  # YAML: commands that only read a run start without it

    header = recording.header
    text = store.pipeline(header.run_id, recording.state.pipeline_sha256)
    declared = load_pipeline(text, header.pipeline_path).outputs
    if not declared:
        return {}
    mask, scope = secrets_of(store, recording), scope_of(recording, store.directory(header.run_id))
    if mask:  # before they are evaluated: a part of a secret, or one in capitals, is not found afterwards
        scope = msgspec.structs.replace(scope, env={name: mask.text(value) for name, value in scope.env.items()})
    values: dict[str, Any] = mask.value(language.render_value(declared, scope))
    return values
