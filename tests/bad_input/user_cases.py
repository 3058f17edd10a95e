r"""Everything a user can give wrong: the exit code and the one line that says what to change.

Each case is a command in the folder of `place.py`: small.py asks for 200 units of 8 examples, 2 workers and the plan
bsp:10%,asp; `run` holds such a run, stopped among its asynchronous units, with checkpoints 1 to 3. In flags and texts
FOLDER stands for that folder. The text is a regular expression over the whole line behind `error: `.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from hybridsync.storage.checkpoints import CheckpointStore, manifest
from hybridsync.storage.durable import WorkdirLock
from tests.bad_input.data_cases import DATA
from tests.bad_input.given import FRESH, GRAMMAR, HERE, OTHER, TRAINS_OTHERWISE, Given, swap, values, write_config
from tests.bad_input.place import PID, Place, flip


def own_optimizer(transformation: str, leaves: int = 1) -> Callable[[Place], Any]:
    """Return the change to a file with this transformation, for as many parameters."""

    def write(place: Place) -> None:
        place.change_config(
            "    return from_config(config.optimizer, config.workload, config.unit_size)",
            "    import optax\n    from hybridsync.training.optimizer import Optimizer\n"
            f"    return Optimizer(lambda learning_rate: {transformation}, learning_rate=0.1)",
        )
        names = [f"w{number}" for number in range(1, leaves)]
        more = "".join(f', "{name}": jnp.zeros(3)' for name in names)
        place.change_config('"w": jnp.zeros(config.model.width)', '"w": jnp.zeros(config.model.width)' + more)

    return write


CONFIG = [
    Given("a file that is not there", ("--config=FOLDER/smal.py",),
        r"there is no configuration file 'FOLDER/smal\.py'; did you mean 'FOLDER/small\.py'\?"),
    Given("a file that is not Python", ("--config=FOLDER/text.txt",),
        r"FOLDER/text\.txt is not a Python file; give the path of a \.py file with --config"),
    Given("a file with a syntax error", (), r"FOLDER/small\.py, line 1: invalid syntax; correct the file",
        write_config("def config(:\n")),
    Given("a file that raises", (), r"FOLDER/small\.py, line 2: ZeroDivisionError: division by zero; correct the file",
        write_config("\nhalf = 1 / 0\n")),
    Given("a file that ends the program", (), r"FOLDER/small\.py, line 2: SystemExit: 3; correct the file",
        write_config("import sys\nsys.exit(3)\n")),
    Given("a file whose config() raises", (), r"FOLDER/small\.py, line 21: NameError: name 'Meen' .*; correct the file",
        swap("model=Mean()", "model=Meen()")),
    Given("a file without task()", (),
        r"FOLDER/small\.py has no function task\(config\); a configuration file defines config\(\), task\(config\) and "
        r"optimizer\(config\)", swap("def task(config)", "def tusk(config)")),
    Given("a file that returns something else", (),
        r"FOLDER/small\.py: config\(\) returned dict, not RunConfig; return a RunConfig",
        swap("return RunConfig(", "return dict(")),
    Given("a file whose task() raises", HERE, r"FOLDER/small\.py, line 25: ModuleNotFoundError: .*; correct the file",
        swap("import jax.numpy", "import jacks.numpy")),
    Given("a file whose task() returns something else", HERE,
        r"the task is a NoneType, not a Task; return one from task\(config\), made by Task\.from_nnx, "
        r"Task\.from_linen or Task\(init, loss, source\)",
        swap("    return Task(", "    Task(")),
    Given("a file whose model cannot be made", (*HERE, *values("model.width=-1"), *FRESH),
        r"task\.init raised FOLDER/small.py, line \d+: TypeError: .* nonnegative, got \(-1,\)\.; correct it"),
    Given("an unknown key", values("optimizer.momentun=0.5"),
        r"unknown configuration key 'optimizer\.momentun'; did you mean 'optimizer\.momentum'\?"),
    Given("an unknown key of the file's own", values("model.widht=5"),
        r"unknown configuration key 'model\.widht'; did you mean 'model\.width'\?"),
    Given("an unknown key that resembles none", values("zzz=1"),
        r"unknown configuration key 'zzz'; known: workload, .*"),
    Given("an override without a value", values("workers"),
        r"cannot read the override 'workers'; write path=value, as in optimizer\.momentum=0\.8"),
    Given("an override without a key", values("=3"),
        r"cannot read the override '=3'; write path=value, as in optimizer\.momentum=0\.8"),
    Given("a group instead of a value", values("model=resnet"),
        r"'model' is a group, got 'resnet' for it; set one of model\.width, model\.scale"),
    Given("a key below a value", values("seed.value=1"), r"'seed' is a value and has no key 'value'; set seed=\.\.\."),
    Given("a text for a number", values("workers=four"),
        "workers must be int, got 'four' in place of 2; correct the value"),
    Given("a fraction for a count", values("workers=2.0"),
        r"workers must be int, got '2\.0' in place of 2; correct the value"),
    Given("a number of 5,000 digits", values("workload=" + "9" * 5000),
        "workload must be int, got '9{5000}' in place of 200; correct the value"),
    Given("a number for a flag", values("telemetry.apply_log=1"),
        r"telemetry\.apply_log must be bool, got '1' in place of False; correct the value"),
    Given("a rate that is no number", values("optimizer.learning_rate=nan"),
        r"optimizer\.learning_rate must be finite, got nan; give it a number"),
    Given("an endless rate", values("optimizer.learning_rate=1e999"),
        r"optimizer\.learning_rate must be finite, got inf; give it a number"),
    Given("an endless factor of a schedule",
        values("optimizer.schedule.kind=piecewise", "optimizer.schedule.boundaries=0.5",
            "optimizer.schedule.factors=inf"),
        r"optimizer\.schedule\.factors must be finite, got \(inf,\); give it a number"),
    Given("a momentum of 1", values("optimizer.momentum=1"),
        r"optimizer\.momentum must be in \[0, 1\), got 1\.0; correct it"),
    Given("an optimizer that is not known", (*HERE, *values("optimizer.name=sdg"), *FRESH),
        r".*'sdg'.*sgd.*"),
    Given("parameters of too few bits", (*HERE, *FRESH),
        r"parameter w is float16, whose gradients overflow .*; use bfloat16 or float32 \(in Flax, .*\)",
        swap('"w": jnp.zeros(config.model.width)', '"w": jnp.zeros(config.model.width, jnp.float16)')),
    Given("a value that a configuration does not have", (),
        r"FOLDER/small\.py, line \d+: RunConfig has no argument 'batch_size'; did you mean 'unit_size'\?",
        swap("unit_size=8", "batch_size=8")),
    Given("an optimizer that ignores its rate", (*HERE, *FRESH),
        r"the optimizer's factory takes learning_rate and does not use it: .* Hand the argument on, as in lambda "
        r"learning_rate: optax\.sgd\(learning_rate\); a schedule goes into Optimizer\(\.\.\., learning_rate=schedule\)",
        own_optimizer("optax.sgd(1e-9)")),
    Given("an optimizer that cannot be divided among the servers", ("--servers=2", *HERE, *FRESH),
        r"the optimizer cannot be divided among 2 servers: .* on the whole tree and .* on a part of it .*; use one "
        r"server, or, where it limits a global norm, the optimizer's clip= instead",
        own_optimizer("optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(learning_rate))", leaves=4)),
    Given("no workload", values("workload=0"), "workload must be at least 1 unit, got 0; give the run work"),
    Given("a workload that no counter holds", values(f"workload={2**31}"),
        r"workload must be below 2\*\*31 units, got 2147483648; use a larger unit_size"),
    Given("empty units", values("unit_size=0"), "unit_size must be at least 1 example, got 0; raise it"),
    Given("a negative seed", ("--seed=-1",), r"seed must be in \[0, 2\*\*32\), got -1; choose another"),
    Given("no worker", ("--workers=0",), "workers must be at least 1, got 0; give the run a worker"),
    Given("no server", ("--servers=0",), "servers must be at least 1, got 0; give the run a parameter server"),
    Given("saves that are never due", ("--checkpoint_secs=inf",),
        r"checkpoint\.secs must be finite, got inf; give it a number"),
    Given("negative work", ("--compute_secs=-1",),
        r"emulation\.compute_secs must be 0 or more, got -1\.0; correct it"),
    Given("a link that carries nothing", ("--link_bytes_per_sec=0",),
        r"emulation\.link_bytes_per_sec must be above 0 or none, got 0\.0; use none for the machine's own speed"),
    Given("a port that is no number", ("--port_bytes_per_sec=nan",),
        r"emulation\.port_bytes_per_sec must be finite, got nan; give it a number"),
    Given("an answer before its question", values("emulation.latency_secs=-0.1"),
        r"emulation\.latency_secs must be 0 or more, got -0\.1; correct it"),
    Given("a momentum variant that is none", ("--momentum=halved",),
        r"policy\.momentum must be .*ramp_steps.*, got 'halved'.*"),
    Given("a scaling of the rate that is none", ("--rate=cubic",), r"policy\.rate must be .*sqrt.*, got 'cubic'.*"),
    Given("a scaling of the rate that a stage does not have", ("--rate=sqrt", "--plan=preduce"),
        r"policy\.rate=sqrt is for updates on the mean of several units, but a worker of 'preduce' steps by itself, at "
        r"2 times the rate because its step is averaged away; use policy\.rate=linear"),
    Given("a scaling in the plan that is none", ("--plan=bsp(scaling=cubic)",),
        r"bsp\(scaling=cubic\) names no scaling of the rate; known: linear, sqrt"),
    Given("a momentum handled that the optimizer does not name", (*HERE, "--momentum=scaled", *FRESH,
        *values("optimizer.momentum=0.0")),
        r"policy\.momentum=scaled changes the coefficient, but the factory names \['learning_rate'\] and no momentum "
        r"that is a number; .*"),
    Given("a momentum to zero that the optimizer does not keep", (*HERE, "--momentum=zero", *FRESH,
        *values("optimizer.momentum=0.0")),
        r"policy\.momentum=zero zeroes the momentum, but the optimizer keeps none: its state has no field trace or mu; "
        r"choose policy\.momentum=keep, or an optimizer with momentum"),
    Given("a resume with the momentum handled otherwise", ("--momentum=zero",),
        rf"this run cannot go on with another policy\.momentum while its momentum is handled by it: it was started "
        rf"with keep, the configuration says zero; {OTHER}"),
    Given("a ramp of nothing", values("policy.ramp=0.0"),
        r"policy\.ramp must be above 0 and at most 1, got 0\.0; give a share of the workload"),
    Given("a speed of nothing", values("policy.speeds=1,0"),
        r"policy\.speeds must be above 0, got \(1\.0, 0\.0\); give each worker's speed beside the others"),
    Given("shares of nobody", values("policy.shares=0,0"),
        r"policy\.shares must be 0 or more, and one above it, got \(0, 0\); give each worker's units a step"),
    Given("shares of more workers than there are", values("policy.shares=1,1,2"),
        "policy\\.shares has 3 values, the run 2 workers; give one for each worker, or none"),
    Given("shares beside a policy that chooses them", values("policy.shares=1,2", "policy.online=rebalance"),
        "policy\\.shares are fixed, but policy\\.online is 'rebalance'.*leave one of them out"),
    Given("no unit at all for a worker", values("policy.most_units=0"),
        r"policy\.most_units must be at least 1, got 0; raise it"),
    Given("speeds of more workers than there are", values("policy.speeds=1,1,2"),
        "policy\\.speeds has 3 values, the run 2 workers; give one for each worker, or none"),
    Given("a detector that is none", values("policy.detector=mean"),
        r"policy\.detector must be .*robust.*, got 'mean'.*"),
    Given("an online policy that is none", ("--policy=patient",),
        r"policy\.online must be .*elastic.*, got 'patient'.*"),
    Given("an online policy that nobody tells who is slow", ("--policy=elastic", *values("policy.detector=off")),
        r"policy\.online is 'elastic', but policy\.detector is 'off': nobody would tell it who is slow; choose a "
        r"detector, or policy\.online=baseline"),
    Given("detours with a momentum that acts at the plan's switches", ("--policy=greedy", "--momentum=zero"),
        r"policy is 'greedy', but policy\.momentum is 'zero', which acts at the plan's own switches alone: use "
        r"policy\.momentum=keep, policy\.online=elastic, or policy\.trigger=off"),
    Given("two that say when lock-step ends", ("--policy=greedy", *values("policy.trigger=knee")),
        r"policy\.online is 'greedy' and policy\.trigger is 'knee': both say when lock-step ends; choose one"),
    Given("an early end with nothing behind it", (*HERE, "--plan=bsp", *FRESH, *values("policy.trigger=knee")),
        r"policy\.trigger is 'knee', but no lock-step stage of the plan 'bsp' has an asynchronous one behind it: write "
        r"one like bsp:50%,asp, whose share is then the most, or policy\.trigger=off"),
    Given("a straggler that is no worker", ("--stragglers=worker=7,delay_ms=3",),
        r"emulation\.stragglers must be about workers 0 to 1, got 7; name one of them"),
    Given("a straggler twice in one entry", ("--stragglers=worker=0,delay_ms=3,worker=1",),
        r"emulation\.stragglers: cannot read 'worker=0,delay_ms=3,worker=1' in 'worker=0,delay_ms=3,worker=1' "
        r"\('worker' is given twice\); write worker=3,delay_ms=30,from=10%,to=30%"),
    Given("an endless delay", ("--stragglers=worker=0,delay_ms=inf",),
        r"emulation\.stragglers must have delay_ms=0 or more, got inf; correct it"),
    Given("a straggler that nothing makes slow", ("--stragglers=worker=0,from=10%",),
        r"emulation\.stragglers: cannot read 'worker=0,from=10%' in 'worker=0,from=10%' \(nothing makes it slow: one "
        r"of delay_ms, factor, rpc_ms, bytes_per_sec is needed\); write worker=3,delay_ms=30,from=10%,to=30%"),
    Given("a straggler that is faster", ("--stragglers=worker=0,factor=0.5",),
        r"emulation\.stragglers must have factor=1 or more, got 0\.5; correct it"),
    Given("a negative delay of messages", ("--stragglers=worker=0,rpc_ms=-1",),
        r"emulation\.stragglers must have rpc_ms=0 or more, got -1; correct it"),
    Given("a link that carries nothing", ("--stragglers=worker=0,bytes_per_sec=0",),
        r"emulation\.stragglers must have bytes_per_sec above 0, got 0; correct it"),
    Given("a straggler that ends before it begins", ("--stragglers=worker=0,rpc_ms=1,from=30%,to=10%",),
        r"emulation\.stragglers must have 0% <= from < to <= 100%, got 30% and 10%; correct it"),
    Given("a stretch that is longer than its period", ("--stragglers=worker=0,rpc_ms=1,every=5%,for=10%",),
        r"emulation\.stragglers must have 0% < for <= every <= 100%, got 10% and 5%; correct it"),
    Given("a period without a stretch", ("--stragglers=worker=0,rpc_ms=1,every=5%",),
        r"emulation\.stragglers: cannot read .* \('every' and 'for' go together\); write .*"),
    Given("a key that stragglers do not have", ("--stragglers=worker=0,rcp_ms=1",),
        r"emulation\.stragglers: cannot read .* \(unknown key 'rcp_ms'; known are worker, delay_ms, factor, rpc_ms, "
        r"bytes_per_sec, from, to, every, for\); write .*"),
    Given("a scenario that is none", ("--stragglers=syncswitch2",),
        r"emulation\.stragglers: cannot read 'syncswitch2' in 'syncswitch2' \(no scenario has that name: did you mean "
        r"'syncswitch-2'\?\); write .*"),
    Given("a scenario of more workers than there are", ("--workers=1", "--stragglers=syncswitch-2"),
        r"emulation\.stragglers must be about workers 0 to 0, got 1; name one of them"),
]

PLAN = [
    Given("no plan", ("--plan=",), f"the plan is empty; {GRAMMAR}"),
    Given("a comma too many", ("--plan=bsp,",), f"plan 'bsp,': cannot read ''; {GRAMMAR}"),
    Given("a share without its sign", ("--plan=bsp:5,asp",), f"plan 'bsp:5,asp': cannot read 'bsp:5'; {GRAMMAR}"),
    Given("an open parenthesis", ("--plan=asp(s=1",), rf"plan 'asp\(s=1': cannot read 'asp\(s=1'; {GRAMMAR}"),
    Given("a share of 5,000 digits", ("--plan=bsp:" + "9" * 5000 + "%",),
        r"the plan 'bsp:9+'\.\.\. has 5005 characters, above the 4096 that are read; shorten it"),
    Given("shares above the whole", ("--plan=bsp:60%,asp:60%",),
        "plan 'bsp:60%,asp:60%': the shares sum to 120 %, not 100 %; change a share, or leave the last one out to take "
        "the rest"),
    Given("shares below the whole", ("--plan=bsp:60%,asp:30%",),
        "plan 'bsp:60%,asp:30%': the shares sum to 90 %, not 100 %; change a share, or leave the last one out to take "
        "the rest"),
    Given("more pushes than workers", ("--plan=bsp:10%,backup(m=9)",),
        r"backup\(m=9\) with 2 workers would wait for ever: give an m from 1 to 2, or 0 for 1"),
    Given("a lead below nothing", ("--plan=ssp(staleness=-1)",),
        r"ssp\(staleness=-1\) is below 0; give a staleness of 0 or more"),
    Given("nothing left for a stage", ("--plan=bsp:100%,asp",),
        r"plan 'bsp:100%,asp': the shares already sum to 100 %, which leaves nothing for 'asp'; lower a share or "
        "remove that stage"),
    Given("two stages without a share", ("--plan=bsp,asp",),
        "plan 'bsp,asp': 'bsp' and 'asp' both lack a length; give all but one of them a length"),
    Given("a share of nothing", ("--plan=bsp:0%,asp",),
        "plan 'bsp:0%,asp': the share of 'bsp' is 0 %; it must lie above 0 and up to 100 %"),
    Given("a share below a unit", ("--plan=bsp:0.1%,asp",),
        r"plan 'bsp:0\.1%,asp': 'bsp' would get no unit of the 200; raise its share or the workload"),
    Given("an unknown protocol", ("--plan=bps",), r"unknown protocol 'bps'; did you mean 'bsp'\?"),
    Given("an unknown argument", ("--plan=bsp:10%,asp(stale=3)",),
        "protocol 'asp' has no argument 'stale'; known: .*"),
    Given("an argument without a value", ("--plan=asp(stale=)",),
        r"plan 'asp\(stale=\)': cannot read 'stale=' in 'asp\(stale=\)'; write key=value"),
    Given("an argument twice", ("--plan=asp(s=1,s=2)",),
        r"plan 'asp\(s=1,s=2\)': 's' is given twice in 'asp\(s=1,s=2\)'; keep one"),
    Given("an unusable value", ("--plan=held(count=three)",),
        "protocol 'held': count='three' is not a int; change it in the plan"),
    Given("a rule that could not work with these workers", (*HERE, "--plan=held(count=3)"),
        "held needs count pushes at a time, got 3 of 2 workers; lower count"),
]

AUTO = [
    Given("a job that nobody has searched", ("--plan=auto", *FRESH, "--history=FOLDER/none.sqlite"),
        r"plan 'auto': no search has found a switch point for this job \(small, 2 workers, 200 units of 8\) in "
        r"FOLDER/none\.sqlite; run hybridsync tune --config=FOLDER/small\.py --history=FOLDER/none\.sqlite"),
    Given("another job than the file's own",
        ("--plan=auto", *FRESH, "--history=FOLDER/none.sqlite", "--workers=3", *values("model.width=5")),
        r".*; run hybridsync tune --config=FOLDER/small\.py --set=workers=3 --set=model\.width=5 --history=.*"),
    Given("a history that is none", ("--plan=auto", *FRESH, "--history=FOLDER/text.txt"),
        r"the job history FOLDER/text\.txt is damaged: file is not a database; move it away or bring a copy back, or "
        "name another file with --history"),
    Given("a history that is a folder", ("--plan=auto", *FRESH, *HERE, "--history=FOLDER"),
        r"the job history FOLDER cannot be used: unable to open database file; free space, mend its rights, or name "
        "another file with --history"),
    Given("no history", ("--plan=auto", "--history="), "--history is empty; name a file, or leave the flag out"),
    Given("auto as one stage of several", ("--plan=bsp:10%,auto", *FRESH), "unknown protocol 'auto'; known: .*"),
]

COMMAND = [
    Given("an argument that is no flag", ("left.over",),
        r"unexpected argument 'left\.over'; every option is written --name=value"),
    Given("an empty workdir", ("--workdir=",), "--workdir is empty; name a directory, or leave the flag out"),
    Given("an empty start", ("--init_from=",), "--init_from is empty; name a directory, or leave the flag out"),
    Given("a resume that must, of nothing", ("--resume=must", *FRESH),
        "resume is 'must', but FOLDER/fresh holds no checkpoint; check the path, or start with 'auto'"),
    Given("a resume that must, of nothing, in one process", ("--resume=must", *FRESH, *HERE),
        "resume is 'must', but FOLDER/fresh holds no checkpoint; check the path, or start with 'auto'"),
    Given("a fresh start in a used workdir", ("--resume=never",),
        "FOLDER/run holds a run already and resume is 'never'; name a fresh workdir, or resume with 'auto'"),
    Given("a start from itself", ("--init_from=FOLDER/fresh", *FRESH),
        "init_from names FOLDER/fresh, which is this run's own workdir, FOLDER/fresh; name another run's"),
    Given("a start from itself by another name, in one process", ("--init_from=FOLDER/run/../fresh", *FRESH, *HERE),
        r"init_from names FOLDER/run/\.\./fresh, which is this run's own workdir, FOLDER/fresh; name another run's"),
    Given("a start from nothing", ("--init_from=FOLDER/none", *FRESH),
        "init_from names FOLDER/none, which holds no checkpoints; name the workdir of a run"),
    Given("a start from a folder that is no workdir", ("--init_from=FOLDER", *FRESH, *HERE),
        "init_from names FOLDER, which holds no checkpoints; name the workdir of a run"),
    Given("an address that others reach", ("--bind=0.0.0.0",),
        r"--bind=0\.0\.0\.0 is refused: it is not a loopback address, and a run on one host has no TLS; leave it out, "
        r"for sockets that no other user can reach, or use --bind=127\.0\.0\.1"),
    Given("an address that is none", ("--bind=here",),
        r"--bind=here is refused: it is not a loopback address, and a run on one host has no TLS; leave it out, "
        r"for sockets that no other user can reach, or use --bind=127\.0\.0\.1"),
    Given("a port that is none", ("--port=65536",),
        "--port=65536 is not a port; use 1 to 65535, or 0 for a free one"),
    Given("a port for metrics that is none", ("--metrics_port=65536",),
        "--metrics_port=65536 is not a port; use 1 to 65535, or 0 for none"),
    Given("one port for the chief and for metrics", ("--port=4711", "--metrics_port=4711", *FRESH),
        "--port=4711 and --metrics_port=4711 are the same port; choose another for one of both"),
    Given("metrics at another machine's address", ("--metrics_port=9100", "--metrics_bind=192.0.2.1"),
        r"--metrics_port=9100 cannot be served on at 192\.0\.2\.1: Cannot assign requested address; choose another "
        "port, or another --metrics_bind"),
    Given("metrics of threads", ("--metrics_port=9100", *HERE),
        "--metrics_port=9100 is for processes, and --runtime=inprocess has threads; leave one of both out"),
    Given("fewer threads than none", ("--threads_per_role=-1",),
        "--threads_per_role=-1 is refused; use 1 to 1024, or leave it out for a share of the cores"),
    Given("compiled programs in a file", ("--compilation_cache=/dev/null", *FRESH),
        r"compiled programs cannot be kept in /dev/null: /dev/null is no folder; name another folder with "
        r"--compilation_cache or \$HYBRIDSYNC_COMPILATION_CACHE, or 'off'"),
    Given("threads for roles that have no process", ("--threads_per_role=2", *HERE),
        "--threads_per_role=2 is for processes, and --runtime=inprocess has threads; leave one of both out"),
    Given("threads that restart at a switch", ("--switch=restart", *HERE),
        "--switch=restart is for processes, and --runtime=inprocess has threads; leave one of both out"),
    Given("shared memory between roles at ports", ("--link=shm", "--bind=127.0.0.1", *FRESH),
        "--link=shm needs Linux, and roles that serve on sockets; leave out --bind, or --link"),
    Given("shared memory between threads", ("--link=shm", *FRESH, *HERE),
        "--link=shm is for processes, and --runtime=inprocess has threads; leave one of both out"),
    Given("a workdir that is a file", ("--workdir=FOLDER/text.txt",),
        r"FOLDER/text\.txt is a file, and a run keeps a folder there; move it away, or name another workdir"),
    Given("a workdir below a file, in one process", ("--workdir=FOLDER/text.txt/run", *HERE),
        r"cannot read FOLDER/text\.txt/run/config\.json: Not a directory; name another workdir"),
]

def damage_all(place: Place) -> None:
    for step in place.steps:
        flip(step)


def newer_format(place: Place) -> None:
    with mock.patch.object(manifest, "FORMAT", manifest.FORMAT + 1):
        store = CheckpointStore(place.run / "checkpoints", keep=9)
        store.save({"w": np.zeros(4, np.float32)}, units=20, ledger={}, run={})
        store.close()


def without_manifest(place: Place) -> None:
    """Make every checkpoint one that plain Orbax could have written."""
    for step in place.steps:
        (step / manifest.MANIFEST_FILE).unlink()


def manifest_without(*keys: str) -> Callable[[Place], Any]:
    """Make every checkpoint one whose manifest is intact and lacks keys."""

    def spoil(place: Place) -> None:
        for step in place.steps:
            path = step / manifest.MANIFEST_FILE
            record = json.loads(path.read_text())
            for key in (*keys, "digest"):
                del record[key]
            record["digest"] = manifest.json_digest(record)
            path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")

    return spoil


def foreign_folder(place: Place) -> None:
    """Put a folder with another program's files where the checkpoints are."""
    shutil.rmtree(place.run / "checkpoints")
    (place.run / "checkpoints" / "7" / "weights").mkdir(parents=True)
    (place.run / "checkpoints" / "7" / "weights" / "0.bin").write_bytes(b"weights")


def lock(place: Place) -> WorkdirLock:
    """Hold the workdir's lock."""
    held = WorkdirLock(place.run)
    held.acquire()
    return held


CHECKPOINT = [
    Given("another seed", ("--seed=7",),
        f"this run cannot go on with another seed: it was started with 0, the configuration says 7; {OTHER}"),
    Given("another W", values("workload=300"),
        f"this run cannot go on with another workload: it was started with 200, the configuration says 300; {OTHER}"
        r"; to train on from its state, name it with --init_from \(Trainer\(init_from=\.\.\.\)\) and take a "
        "fresh workdir"),
    Given("another optimizer", values("optimizer.name=adamw", "optimizer.momentum=0"),
        r"this run cannot go on with another optimizer\.momentum: it was started with 0\.9, the configuration says "
        r"0\.0; another optimizer\.name: it was started with sgd, the configuration says adamw; "
        f"{TRAINS_OTHERWISE}"),
    Given("another model", values("model.width=5"),
        r"this run cannot go on with another model\.width: it was started with 4, the configuration says 5; "
        f"{TRAINS_OTHERWISE}"),
    Given("other data", values("data.length=8"),
        rf"this run cannot go on with another data\.length: it was started with 16, the configuration says 8; {OTHER}"),
    Given("another unit size", values("unit_size=16"),
        "this run cannot go on with another unit_size: it was started with 8, the configuration says 16; use the "
        "earlier value, or pass --convert_units"),
    Given("another model of the same values", HERE,
        r"checkpoint 3 in FOLDER/run/checkpoints is of another model or optimizer: leaf params/w is float32\[4\], "
        r"expected float32\[5\]; configure the run as the one that saved it, or use another workdir",
        swap("config.model.width)", "config.model.width + 1)")),
    Given("another optimizer of the same values", HERE,
        "checkpoint 3 in FOLDER/run/checkpoints is of another model or optimizer: leaf opt_state/.*, expected .*; "
        "configure the run as the one that saved it, or use another workdir",
        swap("from_config(config.optimizer,", "from_config(type(config.optimizer)('adamw'),")),
    Given("every checkpoint damaged", HERE,
        r"none of the 3 checkpoints in FOLDER/run/checkpoints holds what was saved: step 3: file \S+ holds "
        r"other bytes than were written \(\d+ bytes\); step 2: .*; step 1: .*; bring a copy back, or start in another "
        "workdir", damage_all),
    Given("a checkpoint of a newer format", HERE,
        r"checkpoint 4 in FOLDER/run/checkpoints has format 4, this HybridSync reads format 3: use the version that "
        "wrote it", newer_format),
    Given("checkpoints of another program", HERE,
        r"none of the 3 checkpoints in FOLDER/run/checkpoints holds what was saved: step 3: file manifest\.json is "
        "missing; step 2: .*; step 1: .*; bring a copy back, or start in another workdir", without_manifest),
    Given("manifests that lack a key", HERE,
        r"none of the 3 checkpoints in FOLDER/run/checkpoints holds what was saved: step 3: file manifest\.json lacks "
        "units: another program wrote it; step 2: .*; step 1: .*; bring a copy back, or start in another workdir",
        manifest_without("units")),
    Given("manifests without a format", HERE,
        r"none of the 3 checkpoints in FOLDER/run/checkpoints holds what was saved: step 3: file manifest\.json lacks "
        "files, format: another program wrote it; step 2: .*; step 1: .*; bring a copy back, or start in another "
        "workdir", manifest_without("format", "files")),
    Given("a folder of another program", HERE,
        "none of the 1 checkpoints in FOLDER/run/checkpoints holds what was saved: step 7: .*; bring a copy back, or "
        "start in another workdir", foreign_folder),
    Given("a checkpoint that says nothing of its run", HERE,
        "checkpoint 4 in FOLDER/run/checkpoints lacks phase, source in its record 'run', which holds config, "
        "detours, fingerprint, seconds, sequence: a run cannot go on from it; start one with --init_from",
        lambda place: place.save(phase=None, source=None)),
    Given("checkpoints that are gone, of a run that must resume", ("--resume=must", *HERE),
        "resume is 'must', but FOLDER/run holds no checkpoint; check the path, or start with 'auto'",
        lambda place: shutil.rmtree(place.run / "checkpoints")),
    Given("a start from damaged checkpoints", (*HERE, *FRESH, "--init_from=FOLDER/run"),
        "none of the 3 checkpoints in FOLDER/run/checkpoints holds what was saved: .*", damage_all),
    Given("a start from another model", (*HERE, *FRESH, "--init_from=FOLDER/run", *values("model.width=5")),
        r"checkpoint 3 in FOLDER/run/checkpoints is of another model or optimizer: leaf params/w is float32\[4\], "
        r"expected float32\[5\]; configure the run as the one that saved it, or use another workdir"),
    Given("a record of the run that is no JSON", (),
        r"FOLDER/run/config\.json is damaged \(.*\); restore it, or name another workdir",
        lambda place: (place.run / "config.json").write_text("{")),
    Given("a record of the run that is another program's", (),
        r"FOLDER/run/config\.json was not written by HybridSync: it lacks 'config'; name another workdir",
        lambda place: (place.run / "config.json").write_text("{}")),
    Given("a record of the run that lacks its workload", (),
        r"FOLDER/run/config\.json was not written by HybridSync: it lacks 'config\.workload'; name another workdir",
        lambda place: (place.run / "config.json").write_text('{"config": {}}')),
    Given("a summary that is another program's", HERE,
        r"FOLDER/run/summary\.json was not written by HybridSync: it lacks 'exit'; name another workdir",
        lambda place: place.change_json("summary.json", exit=None)),
    Given("a phase that is none", HERE,
        r"""FOLDER/run/phase holds 'seven', not \{"number": N, "nonce": "hex"\}; write the highest phase that """
        r"events\.jsonl names there, or start in another workdir",
        lambda place: (place.run / "phase").write_text("seven")),
    Given("a workdir in use", HERE,
        rf"workdir FOLDER/run is in use by process {PID} on .*; this is process {PID} on .*: wait for that run to "
        "end, stop it, or name another workdir", lock),
]

DEVICES = [
    Given("a platform of a file that is none", values("devices.platform=gpu"),
        r"devices\.platform must be 'auto' or 'cpu' or 'cuda' or 'tpu', got 'gpu'.*"),
    Given("a platform that is not here", (*HERE, *FRESH, "--platform=tpu"),
        r"devices\.platform is 'tpu', and JAX has no such devices here: .*; name another, or 'auto'"),
    Given("more GPUs a worker than this host has", (*FRESH, "--platform=cuda", *values("devices.per_worker=2")),
        r"2 workers with 2 devices each \(devices\.mesh \{'fsdp': -1\}\) need 4 devices, there are 2; lower the number "
        r"of workers or the sizes of the mesh \(GPUs of this host: 4, GPU-7\)"),
    Given("a GPU of its own for more workers than there are", (*FRESH, "--platform=cuda", "--workers=3",
        *values("devices.per_worker=1")),
        r"3 workers with 1 devices each .* need 3 devices, there are 2; .* \(GPUs of this host: 4, GPU-7\)"),
    Given("more devices than a process has", (*HERE, *FRESH, *values("devices.per_worker=64")),
        r"unit_size 8 does not divide into 64 equal parts, one for each device along fsdp=64 of devices\.mesh; .*"),
    Given("a mesh that does not fit the devices", (*HERE, *FRESH, *values('devices.mesh={"tensor": 512}')),
        r"2 workers with 512 devices each \(devices\.mesh \{'tensor': 512\}\) need 1024 devices, there are \d+; .*"),
    Given("a number of devices below none", values("devices.per_worker=-1"),
        r"devices\.per_worker must be 0 or more, got -1; 0 takes what the mesh needs"),
    Given("a mesh that leaves its size open", (*FRESH, *values('devices.mesh={"fsdp": -1}')),
        r"devices\.mesh \{'fsdp': -1\} leaves the number of a worker process's devices open, and on platform 'auto' "
        r"there are as many as asked for; set devices\.per_worker"),
    Given("an axis of no devices", values('devices.mesh={"fsdp": 0}'),
        r"devices\.mesh: axis 'fsdp' has the size 0; use 1 or more, or -1 for the rest of a worker's devices"),
    Given("two axes that take the rest", values('devices.mesh={"fsdp": -1, "tensor": -1}'),
        r"devices\.mesh \{.*\} has -1 more than once; one axis alone can take the rest"),
    Given("the axis of the workers", values('devices.mesh={"worker": 2}'),
        r"devices\.mesh has an axis 'worker'; use a name such as 'fsdp', but not 'worker'"),
    Given("a rule of an axis that is not there",
        values('devices.mesh={"fsdp": 2}', 'devices.rules=[["embed", "fdsp"]]'),
        r"devices\.rules: the rule of 'embed' names the axis 'fdsp', the mesh has fsdp; did you mean 'fsdp'\?"),
    Given("a path that goes to an axis that is not there",
        values('devices.mesh={"fsdp": 2}', 'devices.paths=[["w", ["tensor"]]]'),
        r"devices\.paths: the rule of 'w' names the axis 'tensor', the mesh has fsdp; name one of these, or None for a "
        "dimension that is not divided"),
    Given("more memory than there is", values("devices.memory_fraction=1.5"),
        r"devices\.memory_fraction must be in \(0, 1\] or none, got 1\.5; give a share"),
    Given("a way to sum that is none", values("devices.collective=nccl"),
        r"devices\.collective must be 'auto' or 'threads' or 'xla', got 'nccl'.*"),
    Given("sums over devices that workers share", (*HERE, *FRESH, "--workers=64", *values("devices.collective=xla")),
        r"devices\.collective 'xla' needs devices of its own for each of the 64 workers, there are \d+; use "
        "'threads' or 'auto', or lower the number of workers"),
]

USER = {
    "config": CONFIG,
    "devices": DEVICES,
    "plan": PLAN,
    "auto": AUTO,
    "command": COMMAND,
    "data": DATA,
    "checkpoint": CHECKPOINT,
}


USAGE = r"Pass --helpshort or --helpfull to see help on flags\."

PROCESS = {
    "flags": [
        Given("an unknown flag", ("--wrokers=3",),
            rf"FATAL Flags parsing error: Unknown command line flag 'wrokers'\. Did you mean: workers \?\n{USAGE}"),
        Given("a text for a number", ("--workers=four",),
            r"error: workers must be int, got 'four' in place of 2; correct the value"),
        Given("a platform that is none", ("--platform=gpu",),
            r"FATAL Flags parsing error: flag --platform=gpu: value should be one of <auto\|cpu\|cuda\|tpu>\n"
            rf"{USAGE}"),
        Given("a choice that is none", ("--resume=maybe",),
            rf"FATAL Flags parsing error: flag --resume=maybe: value should be one of <auto\|must\|never>\n{USAGE}"),
    ],
}
