#!/bin/bash
# Trains one configuration on hosts that are reached by ssh:
#     train.sh HOSTS CERTS --config=FILE --workdir=DIR [any flag of hybridsync host]
# HOSTS is a file with an address a line, the head's first. A second word is what ssh is told, where that differs:
#     10.0.0.1
#     10.0.0.2 me@gpu-2
# CERTS/0 is the folder of the authority, CERTS/1, CERTS/2, ... are those of the further hosts (hybridsync certs).
# They, the configuration, the workdir, this folder and the command hybridsync have the same paths on all hosts.
#
# Each host has a restart loop, so an agent or a host that dies ends no other. SIGTERM, Ctrl-C and a terminal that
# closes save and stop the run. Exit codes: 0 complete, 75 saved (run again), 1 refused. `hybridsync train
# --cluster=ssh` runs this script.

set -u
hosts=$1
certs=$2
shift 2
readonly begins=60      # s for which a host that is refused has made a mistake; a running job goes on without it
readonly final=" 0 1 75 "      # complete, refused, saved: the run has ended with it, and not only this agent
read -ra ssh <<<"${HYBRIDSYNC_SSH:-ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3}"
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
head=${addresses[0]}
[[ $head == *:* ]] && head=[$head]      # an address of IPv6
head=$head:${HYBRIDSYNC_PORT:-4711}

on() {      # runs a command on a host, in this folder
  local target=$1
  shift
  "${ssh[@]}" "$target" "cd $(printf %q "$PWD") && exec $(printf '%q ' "$@")" </dev/null
}

agent() {      # the agent of one host, until the run has ended
  local index=$1 started code life=first lost='' asked=''
  shift
  trap '' TERM HUP      # a signal to all processes of the group is the script's to heed; its ssh goes on, too
  trap 'asked=yes' USR1      # the run is to be saved
  while true; do
    started=$SECONDS
    on "${targets[$index]}" "${hybridsync[@]}" host --head="$head" --index="$index" --hosts="${#addresses[@]}" \
      --address="${addresses[$index]}" --certs="$certs/$index" "$@"
    code=$?
    if [[ $code == 1 && -n $lost && $index == 0 && -z $asked ]]; then
      echo "is it the former head that has the workdir? ssh has lost it, and it may train on; tried again in 30 s" >&2
      sleep "${HYBRIDSYNC_PAUSE:-30}"
      continue
    fi
    [[ $code == 1 && $index != 0 ]] && ((SECONDS < begins)) && kill -USR2 $$
    [[ $final == *" $code "* ]] && return "$code"
    if [[ $code == 127 && $life == first ]]; then      # nor would it be there the next time
      echo "error: ${addresses[$index]} has no ${hybridsync[0]}; install HybridSync at the same path on all hosts" >&2
      return 1
    fi
    life=next
    [[ $code == 255 ]] && lost=yes || lost=
    if [[ -z $asked ]]; then
      echo "the agent of ${addresses[$index]} ended with $code after $((SECONDS - started)) s and is started again" >&2
      sleep $((SECONDS - started < 10 ? 2 : 1))      # a host that is gone must not be asked all the time
    fi
    if [[ -n $asked ]]; then      # another agent would train on
      echo "error: the agent of ${addresses[$index]} ended with $code while the run was to be saved; run it again" >&2
      return 70
    fi
  done
}

asked=
refused=
# shellcheck disable=SC2317      # the trap calls it
save() {      # ssh passes no signals on
  asked=yes
  while kill -USR1 "$leader" 2>/dev/null; do
    on "${targets[0]}" "${hybridsync[@]}" stop "$workdir" --nowait && break
    sleep 2      # a run that has just started cannot be stopped yet
  done &
}

on "${targets[0]}" true
code=$?
if ((code == 255)); then
  echo "error: ssh does not reach the head, ${targets[0]}; correct $hosts, or let ssh in without a password" >&2
  exit 1
elif ((code)); then
  echo "error: the head, ${targets[0]}, has no folder $PWD; start the job in one that all hosts share" >&2
  exit 1
fi
trap '' USR1      # for an agent that has not come to its own trap
trap 'refused=yes; save' USR2      # a host was refused: without it the head would wait in vain
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
# Agents hear of the end from the head. One that is being started again finds no head, nor do those of a head that was
# refused before it served.
for ((left = code == 1 ? 5 : 60; left > 0; left--)); do
  kill -0 "${others[@]}" 2>/dev/null || break
  sleep 1
done
kill -KILL "${others[@]}" 2>/dev/null
if [[ -n $refused && $code != 0 && $code != 1 ]]; then      # 1: not a host, the run was refused
  echo "error: the job has ended, because a host was refused (see above); correct that, and start it again" >&2
  exit 1
fi
exit "$code"
