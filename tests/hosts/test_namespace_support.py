"""Where a machine refuses a part of what these tests need, they are skipped with one line that says which. Never an error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launching import GUARD_S, environment

from tests.hosts import namespace_support

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("tool", "words", "said"),
    [
        ("ip", "netns add", "to make them"),
        ("ip", "type bridge", "bridges"),
        ("ip", "type veth", "veth pairs"),
        ("ip", "master br0", "ports of a bridge"),
        ("ip", "addr add", "addresses"),
        ("nsenter", "true", "to enter them"),
        ("nsenter", "connect_ex", "packets through a bridge"),
        ("iptables", "-j DROP", "iptables rules"),
    ],
)
def test_each_refusal_is_found_before_anything_is_built_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tool: str, words: str, said: str
) -> None:
    wrapper = tmp_path / tool
    wrapper.write_text(
        f'#!/bin/sh\ncase "$*" in *"{words}"*) echo "Operation\nnot permitted" >&2; exit 2;; esac\nexec {shutil.which(tool)} "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert namespace_support.missing() == f"hosts are network namespaces, and this machine refuses {said}: Operation not permitted"
    assert f"st{os.getpid()}-try" not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


def test_a_tool_that_is_not_there_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ip").symlink_to(shutil.which("ip") or "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "nsenter is not installed: apt-get install util-linux" in namespace_support.missing()


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed: apt-get install util-linux")
@pytest.mark.parametrize(("capability", "said"), [("sys_admin", "refuses to make them"), ("net_admin", "refuses bridges")])
def test_without_the_right_to_make_networks_all_tests_are_skipped_with_one_line_a_file(capability: str, said: str) -> None:
    command = [
        "setpriv",
        f"--bounding-set=-{capability}",
        f"--inh-caps=-{capability}",
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-m",
        "hosts",
        "tests/hosts/test_tcp_store.py",
        "tests/hosts/test_ssh.py",
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=GUARD_S, check=False)
    last = done.stdout.splitlines()[-1]
    assert done.returncode == 0, done.stdout
    assert "skipped" in last and "passed" not in last and "error" not in last
    assert len([line for line in done.stdout.splitlines() if said in line]) == 2, done.stdout


def test_a_machine_without_tap_devices_says_so(tmp_path: Path) -> None:
    space = f"st{os.getpid()}-tap"
    code = (
        f"from tests.hosts import delayed_link\ntry: delayed_link.start('{space}', 'a', '{space}', 'b', '1', '1', '1')\n"
        "except delayed_link.Refused as error: print(error)"
    )
    hidden = f'mount -t tmpfs none /dev/net && exec {sys.executable} -c "$0"'
    subprocess.run(["ip", "netns", "add", space], check=True)
    try:
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", hidden, code],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=GUARD_S,
            check=False,
        )
    finally:
        subprocess.run(["ip", "netns", "del", space], check=True)
    assert "neither tc netem nor TAP devices can be used here" in done.stdout and "/dev/net/tun" in done.stdout, done.stderr
