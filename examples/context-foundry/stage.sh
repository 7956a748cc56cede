#!/bin/sh
# A stage of the loop: reads what came before, says how far it is, leaves a report on stdout.  usage: stage.sh NAME INPUT
set -eu
for part in 1 2 3 4; do
    echo "$1: part $part of 4" >&2
    echo "{\"done\": $part, \"total\": 4}" >> "$RERAIL_PROGRESS"
    sleep "${PACE:-0.3}"
done
echo '{"cost_usd": 0.21, "input_tokens": 1800, "output_tokens": 420}' >> "$RERAIL_METRICS"
echo "# $1"
if [ -f "$2" ]; then sed 's/^# \(.*\)/(after \1)/' "$2"; else echo "Task: $2"; fi
if [ "$1" = planner ]; then printf '## File Operations\n- src/theme.css\n## Verification\n- make test\n'; fi
