"""Starts ``mirage up`` without models, lets client.js drive it, and checks what it saw."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from mirage_core.wire.v1 import admin_pb2

HERE = Path(__file__).parent
METHODS = len(admin_pb2.DESCRIPTOR.services_by_name["AdminService"].methods)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="mirage-") as temporary:
        folder = Path(temporary)
        config = folder / "client.yaml"
        mirage = Path(sys.executable).with_name("mirage")
        command = [str(mirage), "up", "--state-dir", temporary]
        command += ["--admin-port", "0", "--agent-port", "0", "--device-bytes", "16MiB"]
        command += ["--client-config", str(config)]
        up = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert up.stdout is not None
        try:
            for line in up.stdout:
                if "Ctrl-C ends all" in line:
                    break
            settings = yaml.safe_load(config.read_text())
            script = ["node", str(HERE / "client.js"), settings["servers"][0]]
            done = subprocess.run(
                [*script, settings["token_file"]], capture_output=True, text=True, timeout=60
            )
        finally:
            up.send_signal(signal.SIGINT)
            up.wait()
    print(done.stdout, done.stderr)
    steps = {each["step"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0, "the client failed"
    assert steps["reflect"]["methods"] == METHODS, "each RPC is found"
    assert steps["get"] == {"step": "get", "priority": -7, "state": "MODEL_STATE_ACTIVE"}
    assert steps["missing"]["code"] == 5, "NOT_FOUND"
    assert steps["watch"]["messages"] >= 2
    print("a client in another language drove the admin API by reflection")


if __name__ == "__main__":
    main()
