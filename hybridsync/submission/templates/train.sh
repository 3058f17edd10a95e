#!/bin/bash
# Trains one configuration on hosts that are reached by ssh:
#     train.sh HOSTS CERTS --config=FILE --workdir=DIR [any flag of hybridsync host]
# HOSTS is a file with an address a line, the head's first. A second word is what ssh is told, where that differs:
#     10.0.0.1
#     10.0.0.2 me@gpu-2
# CERTS/0 is the folder of the authority, CERTS/1, CERTS/2, ... are those of the further hosts (hybridsync certs).
# They, the configuration, the workdir, this folder and the command hybridsync have the same paths on all hosts.
#
# Each host has a restart loop, so an agent or a host that dies takes nobody along. SIGTERM, Ctrl-C and a terminal that
# closes save and stop the run. Exit codes: 0 complete, 75 saved (run again), 1 refused. `hybridsync train
# --cluster=ssh` runs this script.

set -u
hosts=$1
certs=$2
shift 2
readonly final=" 0 1 75 "      # complete, refused, saved: the run has ended with it, and not only this agent
read -ra ssh <<<"${HYBRIDSYNC_SSH:-ssh -o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3}"
hybridsync=(${HYBRIDSYNC_PYTHON:+"$HYBRIDSYNC_PYTHON" -m} hybridsync)
workdir=
for flag; do
  [[ $flag == --workdir=* ]] && workdir=${flag#--workdir=}
done
[[ -n $workdir ]] || { echo "error: no --workdir=DIR was given" >&2; exit 1; }

addresses=()
targets=()
while read -r address target _ || [[ -n $address ]]; do      # the last line may have no end
  address=${address%$'\r'} target=${target%$'\r'}
  [[ -z $address || $address == \#* ]] && continue
  addresses+=("$address")
  targets+=("${target:-$address}")
done <"$hosts"
((${#addresses[@]})) || { echo "error: $hosts names no host" >&2; exit 1; }
head=${addresses[0]}:${HYBRIDSYNC_PORT:-4711}

on() {      # runs a command on a host, in this folder
  local target=$1
  shift
  "${ssh[@]}" "$target" "cd $(printf %q "$PWD") && exec $(printf '%q ' "$@")" </dev/null
}

agent() {      # the agent of one host, until the run has ended
  local index=$1 started code life=first
  shift
  trap '' TERM HUP      # a signal to all processes of the group is the script's to heed; its ssh goes on, too
  while true; do
    started=$SECONDS
    on "${targets[$index]}" "${hybridsync[@]}" host --head="$head" --index="$index" --hosts="${#addresses[@]}" \
      --address="${addresses[$index]}" --certs="$certs/$index" "$@"
    code=$?
    [[ $final == *" $code "* ]] && return "$code"
    if [[ $code == 127 && $life == first ]]; then      # nor would it be there the next time
      echo "error: ${addresses[$index]} has no ${hybridsync[0]}; install HybridSync at the same path on all hosts" >&2
      return 1
    fi
    life=next
    echo "the agent of ${addresses[$index]} ended with $code after $((SECONDS - started)) s and is started again" >&2
    sleep $((SECONDS - started < 10 ? 2 : 1))      # a host that is gone must not be asked all the time
  done
}

asked=
# shellcheck disable=SC2317      # the trap calls it
save() {      # ssh passes no signals on
  asked=yes
  while kill -0 "$leader" 2>/dev/null; do
    on "${targets[0]}" "${hybridsync[@]}" stop "$workdir" --nowait && break
    sleep 2      # a run that has just started cannot be stopped yet
  done &
}

agent 0 "$@" &
leader=$!
trap save TERM INT HUP
others=()
for ((index = 1; index < ${#addresses[@]}; index++)); do
  agent "$index" "$@" &
  others+=($!)
done

until wait "$leader"; code=$?; ((code < 128)); do      # a signal ends a wait early
  kill -0 "$leader" 2>/dev/null && continue
  [[ -n $asked ]] && code=75      # it has ended meanwhile, and bash may have lost with what
  break
done
for _ in {1..60}; do      # agents hear of the end from the head, and one that is being started again finds no head
  kill -0 "${others[@]}" 2>/dev/null || break
  sleep 1
done
kill -KILL "${others[@]}" 2>/dev/null
exit "$code"
