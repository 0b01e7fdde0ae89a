#!/usr/bin/env bash
# Plays a complete pilot on one machine: every command of docs/pilot.md, with synthetic notes.
# Each hospital and the coordinator have their own folder and processes, with TLS between them.
# The script ends at the first command that fails; all folders stay for inspection.
#
#   examples/pilot.sh [FOLDER]        or: secure-fl pilot local --out FOLDER
#
# Variables: PARTIES (3), ROUNDS (3), SIZE (120 training notes per hospital), PORT (8443),
# CODEBOOK (a file for `secure-fl stats`: open this codebook, and do not train),
# PYTHON (use the secure_fl of this interpreter, not the command secure-fl).
set -euo pipefail

folder=${1:-pilot} parties=${PARTIES:-3} rounds=${ROUNDS:-3} size=${SIZE:-120} port=${PORT:-8443}
codebook=${CODEBOOK:+$(realpath "$CODEBOOK")}
program=(secure-fl)
[ -z "${PYTHON:-}" ] || program=("$PYTHON" -m secure_fl)
keys=(--passphrase-file passphrase)
anna=(--keys anna --passphrase-file anna.passphrase) # a person who approves plans
hospitals=$(seq -f 'hospital-%g' "$parties")
export COLUMNS=${COLUMNS:-80} OMP_NUM_THREADS=1

title() { printf '\n=== %s\n' "$1"; }
at() { # PLACE COMMAND...: run a command in a machine's folder
  printf '%s$ secure-fl %s\n' "$1" "${*:2}"
  (cd "$1" && "${program[@]}" "${@:2}")
}
start() { # PLACE COMMAND...: run it in the background; its output goes to PLACE/COMMAND.log
  printf '%s$ secure-fl %s &\n' "$1" "${*:2}"
  (cd "$1" && exec "${program[@]}" "${@:2}") >>"$1/$2.log" 2>&1 &
}
send() { # FROM TO FILE...: copy files to another machine's folder, as mail would
  printf '%s -> %s: %s\n' "$1" "$2" "${*:3}"
  (cd "$1" && cp -r "${@:3}" "../$2/")
}
until_line() { # PID LOG TEXT: wait for a line in the log of a running process
  until grep -q "$3" "$2"; do
    kill -0 "$1" 2>/dev/null || ended "$1" "$2" || exit
    sleep 0.2
  done
}
ended() { # PID LOG: wait for a process; if it failed, show its log and end with its status
  wait "$1" || { status=$?; tail -n 20 "$2" >&2; exit "$status"; }
}
approve() { at hospital-1 site approve site.toml --plan "$1" "${anna[@]}" --yes | tail -n 2; }
coordinate() { # PLAN RUN
  start hub coordinate "$1" --kit kits/hub --out "runs/$2" --wait 120 --grace 5 "${keys[@]}"
}
all_join() {
  for name in $hospitals; do
    start "$name" join site.toml "${keys[@]}" --quiet
    pid[${name#hospital-}]=$!
  done
}
all_ended() { for name in $hospitals; do ended "${pid[${name#hospital-}]}" "$name/join.log"; done; }

mkdir "$folder" && cd "$folder"
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
pid=()
newcomer=hospital-$((parties + 1))
"${program[@]}" data make ade --out . --parties $((parties + 1)) --size "$size" --seed 0 >/dev/null
mkdir hub
cat >hub/plan.toml <<PLAN
dataset = "notes"
run = { name = "study" }
task = { labels = ["ade", "no-ade"], positive = "ade", max_length = 64 }
model = { layers = 2 }
training = { learning_rate = 1.5e-3, batch_size = 16, device = "cpu" }
algorithm = { name = "fedavg", rounds = $rounds, epochs = 3 }
PLAN
{
  printf 'dataset = "notes"\nrun = { name = "counts" }\n\n'
  if [ -n "$codebook" ]; then cat "$codebook"; else
    printf '[algorithm]\nname = "statistics"\n'
    printf 'variables.label.values = ["ade", "no-ade"]\ntables.labels = ["label"]\n'
  fi
} >hub/codebook.toml

title "Each hospital: identity, rules and card"
at hospital-1 data describe train.jsonl dev.jsonl test.jsonl
for name in $hospitals; do
  at "$name" site init "$name" --dataset notes --train train.jsonl --dev dev.jsonl \
    --test test.jsonl --rounds "$rounds" --made-up --algorithm fedavg --algorithm statistics "${keys[@]}"
  printf '\n[site.statistics]  # codebooks are allowed, with the default rules\n' >>"$name/site.toml"
  [ "$name" = hospital-1 ] || send "$name" hospital-1 "$name.card.json"
done
at hub keys identity hub "${keys[@]}"
send hub hospital-1 hub.card.json

title "The dealer, hospital-1: roster and keys"
# With all hospitals required, the run waits for the one that is killed.
at hospital-1 keys roster $(printf '%s.card.json ' $hospitals) --coordinator hub.card.json \
  --threshold "$parties"
at hospital-1 keys ceremony roster.json --yes "${keys[@]}" | tail -n 2
send hospital-1 hub roster.json bundles

title "The coordinator: kits"
at hub pilot init roster.json --plan plan.toml --host localhost --port "$port" "${keys[@]}"
for name in $hospitals; do send hub "$name" "kits/$name.kit"; done

title "Each hospital: check"
roster=$(at hub keys show roster.json | sed -n 's/^fingerprint: //p') # compared by phone
for name in $hospitals; do
  at "$name" site check site.toml --kit "$name.kit" --roster "$roster" "${keys[@]}"
done

title "At hospital-1, a person has to approve"
person=$(at hospital-1 keys identity anna "${anna[@]}" | sed -n 's/^fingerprint: //p')
printf '\n[site.approval]\nby = ["%s"]\n' "$person" | tee -a hospital-1/site.toml

if [ -z "$codebook" ]; then
  approve kit/plan.toml
  title "The run; hospital-2 is killed and returns"
  all_join
  coordinate plan.toml study
  hub=$!
  until_line "$hub" hub/coordinate.log "round $((rounds < 2 ? rounds : 2)) of"
  echo "kill -9 of \`join\` at hospital-2"
  kill -9 "${pid[2]}"
  until_line "$hub" hub/coordinate.log "waits for hospital-2"
  at hub status runs/study
  start hospital-2 join site.toml "${keys[@]}" --quiet
  pid[2]=$!
  ended "$hub" hub/coordinate.log
  all_ended
  cat hub/coordinate.log

  title "Results"
  at hub status runs/study
  at hospital-1 status runs/study
  sha256sum hospital-*/runs/study/model/model.safetensors # the same model at all hospitals
  at hospital-1 runs show runs/study
  at hospital-1 predict runs/study "Rash after starting velodorin."
fi

title "A codebook over the records"
send hub hospital-1 codebook.toml
approve codebook.toml
all_join
coordinate codebook.toml counts
ended $! hub/coordinate.log
all_ended
echo "hospital-1/runs/counts/result.json (each hospital has the tables, the coordinator none):"
sed -n '/"statistics": {/,/^  }/p' hospital-1/runs/counts/result.json

if [ -z "$codebook" ]; then
  title "hospital-1 erases the run; its ledger keeps a note"
  at hospital-1 site erase site.toml --run study --yes "${keys[@]}"
  at hospital-1 ledger show ledger/hospital-1/ledger.sqlite

  title "$newcomer joins: a new roster and new kits"
  at "$newcomer" site init "$newcomer" --dataset notes --train train.jsonl --dev dev.jsonl \
    --test test.jsonl --made-up "${keys[@]}"
  send "$newcomer" hospital-1 "$newcomer.card.json"
  at hospital-1 keys roster $(printf '%s.card.json ' $hospitals) "$newcomer.card.json" \
    --coordinator hub.card.json --after roster.json -o roster2.json
  at hospital-1 keys rotate roster2.json -o bundles2 --yes "${keys[@]}"
  send hospital-1 hub roster2.json bundles2
  at hub pilot init roster2.json --bundles bundles2 --host localhost --port "$port" -o kits2 \
    "${keys[@]}"
  roster=$(at hub keys show roster2.json | sed -n 's/^fingerprint: //p')
  for name in hospital-1 "$newcomer"; do
    send hub "$name" "kits2/$name.kit"
    at "$name" site check site.toml --kit "$name.kit" --roster "$roster" "${keys[@]}"
  done
fi
