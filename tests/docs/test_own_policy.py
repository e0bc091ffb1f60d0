"""The policy of docs/guides/own-policy.md, as it stands on the page: the simulator finds it by its file's name and runs it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from stretto.cli.main import main
from stretto.scheduling import policies

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "own-policy.md"
WORKLOAD = """name,time,steps,batch_size,step_s,sync_s,min,max,num_replicas
long,0,600,64,0.5,0.02,1,8,4
short,60,120,64,0.5,0.02,1,4,2
"""


def test_the_policy_of_the_guide_decides_in_the_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = re.search(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert code is not None
    (tmp_path / "equal.py").write_text(code[1])
    (tmp_path / "workload.csv").write_text(WORKLOAD)
    monkeypatch.setattr(policies, "__path__", [*policies.__path__, str(tmp_path)])
    words = ["stretto", "simulate", str(tmp_path / "workload.csv"), "--policy", "equal", "--nodes", "1x8", "--quiet", "-o", "json"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    monkeypatch.delitem(sys.modules, f"{policies.__name__}.equal")
    output = capsys.readouterr().out
    assert ended.value.code == 0, output
    assert "equal" in json.dumps(json.loads(output))
