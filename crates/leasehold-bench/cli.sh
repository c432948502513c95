#!/usr/bin/env bash
# What `leasehold run` costs beside `flock`, from start to end of the process, on one Redis
# server that this script starts, and on the embedded store. Needs hyperfine, redis-server
# and flock. The target: at most 3 × flock, plus one TCP connection.
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo build --release --quiet -p leasehold-cli
tool=${CARGO_TARGET_DIR:-target}/release/leasehold

dir=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null; rm -rf "$dir"' EXIT
port=$((20000 + RANDOM % 20000))
redis-server --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/log" &
server=$!
until redis-cli -p "$port" ping >/dev/null 2>&1; do sleep 0.1; done
# In the first ten seconds a new server takes tokens from the future only: not the usual state.
LEASEHOLD_NODES=redis://127.0.0.1:$port "$tool" run n -- sleep 11

export XDG_STATE_HOME=$dir
hyperfine --shell none --warmup 20 --runs "${1:-300}" --export-json "$dir/out.json" \
  -n 'flock' "flock -n $dir/f true" \
  -n 'leasehold, redis' "$tool run n -n --node redis://127.0.0.1:$port -- true" \
  -n 'leasehold, embedded' "$tool run n -n --node local:$dir/locks.db -- true"
medians=$(grep -o '"median": [0-9.e-]*' "$dir/out.json" | cut -d' ' -f2 | tr '\n' ' ')
awk -v m="$medians" 'BEGIN {
  split(m, t, " ")
  printf "median: flock %.2f ms; redis %.2f ms = %.2f x; embedded %.2f ms = %.2f x\n",
    t[1] * 1e3, t[2] * 1e3, t[2] / t[1], t[3] * 1e3, t[3] / t[1]
}'
