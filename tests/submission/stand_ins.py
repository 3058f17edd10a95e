"""Programs that stand for ssh, for Slurm's commands and for hybridsync, to be first on the PATH.

ssh, sbatch and srun run on this machine what they are given, as the job scripts wrote it. tests/integration/ runs the
same scripts under the real ones.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

HYBRIDSYNC = r"""#!/bin/bash
if [[ $1 == stop ]]; then
  [[ -e $FAKE/stopped && -s $FAKE/pid.0 ]] || { touch "$FAKE/stopped"; exit 1; }
  printf '%s|' "$@" >"$FAKE/stopped"; kill -TERM $(cat "$FAKE"/pid.*); exit 0
fi
for word; do [[ $word == --certs=*/[0-9] ]] && index=${word##*/}; done
printf '%s|' "$@" "$HYBRIDSYNC_HEAD" >>"$FAKE/calls.$index"; echo >>"$FAKE/calls.$index"
read -r code <"$FAKE/codes.$index"; sed -i 1d "$FAKE/codes.$index"
if [[ $code == save || $code == die || $code == train || $code == refused ]]; then
  case $code in die) end=137 ;; refused) end=1 ;; *) end=75 ;; esac
  trap 'kill $! 2>/dev/null; exit $end' TERM
  echo $$ >"$FAKE/new-pid.$index"; mv "$FAKE/new-pid.$index" "$FAKE/pid.$index"
fi
echo "the agent $index runs in $PWD"
if [[ -n ${end:-} ]]; then
  [[ $code == train ]] && secs=6 || secs=60
  sleep $secs & wait
  code=0
fi
[[ $index == 0 ]] && for _ in {1..400}; do [[ -e $FAKE/calls.1 ]] && break; sleep 0.05; done
exit "$code"
"""
"""Ends as its host's file of codes says, a line a life. `save` waits for SIGTERM and ends with 75, `die` with 137,
`refused` with 1; `train` does as `save`, but completes after 6 s. The first `stop` comes too early, and so does each
before there is a head to be told. The head does not end by itself before the other host has begun."""

SBATCH = r"""#!/bin/bash
printf '%s\n' "$@" >"$FAKE/sbatch"
[[ -e $FAKE/refuses ]] && { cat "$FAKE/refuses" >&2; exit 1; }
for word; do
  [[ $word == --output=* ]] && out=${word#--output=} && out=${out/\%j/17} && out=${out//\%\%/%}
  [[ $word == --comment=* ]] && comment=${word#--comment=}
done
while [[ $1 == --* ]]; do shift; done
echo "17 RUNNING $comment" >"$FAKE/queue"
echo "JobState=RUNNING Reason=None ExitCode=0:0" >"$FAKE/state"
export SLURM_JOB_ID=17 SLURM_JOB_NODELIST=n[1-2]
setsid bash -c 'echo $$ >"$FAKE/job"
  env --default-signal=INT bash "$@"; code=$?
  state=COMPLETED; ((code)) && state=FAILED
  rm "$FAKE/queue"
  echo "JobState=$state Reason=None ExitCode=$code:0" >"$FAKE/state.new"; mv "$FAKE/state.new" "$FAKE/state"' \
  sbatch "$@" >"$out" 2>&1 </dev/null &
echo 17
"""
"""Runs the script at once, as job 17, in a process group of its own whose leader's number is in `job`. What bash starts
in the background ignores SIGINT, which a job of Slurm's does not."""

SCONTROL = """#!/bin/bash
case "$*" in
  "show hostnames n[1-2]") printf 'n1\\nn2\\n' ;;
  "show node n"[12]" --oneliner") echo "NodeName=$3 Arch=x86_64 NodeAddr=10.0.0.${3#n} NodeHostName=$3 Port=0" ;;
  "show job 17 --oneliner") echo "JobId=17 JobName=hybridsync $(cat "$FAKE/state")" ;;
  "requeue 17") touch "$FAKE/requeued" ;;
  *) echo "not expected: $*" >&2; exit 1 ;;
esac
"""

PROGRAMS = {
    "hybridsync": HYBRIDSYNC,
    "python-of-hosts": '#!/bin/bash\n[[ "$1 $2" == "-m hybridsync" ]] && shift 2 && exec hybridsync "$@"\n',
    "ssh": "#!/bin/bash\n[[ -e $FAKE/unreached ]] && exit 255\n"
    "while [[ $1 == -* ]]; do [[ $1 == -o ]] && shift; shift; done\n"
    'shift\ncd / && exec env --default-signal=TERM,HUP bash -c "$1"\n',  # another host's processes ignore nothing
    "srun": '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec env --default-signal=TERM "$@"\n',
    "sbatch": SBATCH,
    "squeue": '#!/bin/bash\n[[ ! -e $FAKE/queue ]] || cat "$FAKE/queue"\n',
    "scontrol": SCONTROL,
}


class Cluster:
    """Two hosts whose agents end as they are told.

    Args:
      folder: for the programs and what they leave.
      head: exit code of each life of the head's agent, or `save`.
      other: likewise, of the other host's.
    """

    def __init__(self, folder: Path, head: str, other: str) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        for name, text in PROGRAMS.items():
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        for index, codes in enumerate((head, other)):
            (folder / f"codes.{index}").write_text("\n".join(codes.split()) + "\n")
        (folder / "hosts").write_text("# the head\n10.0.0.1\n\n10.0.0.2 me@second\n")

    @property
    def environ(self) -> dict[str, str]:
        """Return the variables by which the programs are found, and find each other."""
        return {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "FAKE": str(self.folder)}

    def calls(self, index: int) -> list[list[str]]:
        """Return the arguments of each life of an agent, and the head that its variables name."""
        return [line.split("|")[:-1] for line in (self.folder / f"calls.{index}").read_text().splitlines()]

    def signal_script(self, number: int) -> None:
        """Send a signal to the job script alone, as `scancel --batch` does."""
        script = Path(f"/proc/{self._job}/task/{self._job}/children").read_text().split()
        os.kill(int(script[0]), number)

    def end(self) -> None:
        """Leave nothing of a job behind."""
        if (self.folder / "job").exists() and (self.folder / "queue").exists():
            os.killpg(self._job, signal.SIGKILL)

    @property
    def _job(self) -> int:
        return int((self.folder / "job").read_text())
