#!/bin/sh
# Stands for an agent that implements a spec and commits it.  usage: implement.sh NUMBER
set -eu
sleep "${PACE:-0.3}"
echo "the feature of spec $1" > feature.txt
if [ -e forget-to-commit ]; then exit 0; fi
git add feature.txt
git -c user.name=agent -c user.email=agent@localhost commit -qm "Implement spec $1"
echo "commit=$(git rev-parse --short HEAD)" >> "$RERAIL_OUTPUT"
