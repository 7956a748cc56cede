#!/bin/sh
# The story of rerail in ten seconds: run, kill -9, look, resume. usage: demo.sh RERAIL
set -eu
rerail=$1
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"

cat > pipeline.yaml <<'P'
name: build-loop
steps:
  - {id: scout, run: 'sleep 0.6; echo "the code has 3 modules" > scout.md; echo scout >> ran.log'}
  - {id: plan, run: 'sleep 0.6; sed "s/^/plan: /" scout.md > plan.md; echo plan >> ran.log'}
  - {id: tests, needs: [plan], run: 'sleep 0.8; echo "tests for $(cat plan.md)" > tests.md; echo tests >> ran.log'}
  - {id: build, needs: [plan], run: 'echo build >> ran.log; sleep 1.5; echo "built $(cat plan.md)" > build.md'}
  - {id: review, needs: [tests, build], run: 'sleep 0.4; cat build.md tests.md > review.md; echo review >> ran.log'}
P

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

say '$ rerail run pipeline.yaml'
"$rerail" run pipeline.yaml --id demo --parallel 2 &
victim=$!
until grep -q tests ran.log 2>/dev/null; do sleep 0.05; done
sleep 0.2

say "$ kill -9 $victim        # half-way: build is running"
kill -9 "$victim"
wait "$victim" 2>/dev/null || true

say '$ rerail list'
"$rerail" list

say '$ rerail resume'
"$rerail" resume

say 'What really ran (a ledger the steps keep themselves): build was cut off and ran again, nothing else did.'
sort ran.log | uniq -c
