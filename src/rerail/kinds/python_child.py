"""Child process of a `python` step: calls module:function and outputs its result.

Started by path, so that it needs nothing but the interpreter: it must not import rerail.
"""

import importlib
import inspect
import json
import os
import sys
import traceback


def main() -> int:
    target = sys.argv[1]
    with open(sys.argv[2], "rb") as file:
        arguments = json.load(file)
    sys.path[0] = os.getcwd()  # this file's own directory does not belong on the path of user code
    module_name, _, name = target.partition(":")
    try:
        function = importlib.import_module(module_name)
        for part in name.split("."):
            function = getattr(function, part)
        result = function(**arguments)  # type: ignore[operator]
        if inspect.iscoroutine(result):
            import asyncio

            result = asyncio.run(result)
        if result is not None:
            if not isinstance(result, dict):
                raise TypeError(f"{target} returned {type(result).__name__}; outputs are a dict or None")
            line = json.dumps(result, allow_nan=False)
            if json.loads(line) != result:
                raise TypeError(f"{target} returned values that JSON would alter")
            with open(os.environ["RERAIL_OUTPUT"], "a", encoding="utf-8") as file:
                file.write(line + "\n")
    except BaseException as error:  # noqa: BLE001 - user code: any exception is the step's failure
        if isinstance(error, SystemExit) and error.code in (None, 0):
            return 0
        # The first frame is this file's, which is not the user's.
        shown = error.with_traceback(error.__traceback__.tb_next if error.__traceback__ else None)
        text = "".join(traceback.format_exception(shown))
        sys.stderr.write(text)
        with open(os.environ["RERAIL_OUTPUT"] + ".error", "w", encoding="utf-8") as file:
            json.dump({"type": type(error).__name__, "message": str(error), "traceback": text}, file)
        code = error.code if isinstance(error, SystemExit) else 1
        return code if isinstance(code, int) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
