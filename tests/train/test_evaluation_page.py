"""The script of docs/guides/evaluation.md runs, and prints what one process would count by itself."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from launching import environment

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "evaluation.md"

CHECK = """
with torch.no_grad():
    right = model(x).argmax(1) == y
assert data.sums == {"correct": int(right.sum()), "total": 400}
assert torch.equal(data.gathered["labels"], y) and torch.equal(data.gathered["logits"].argmax(1) == y, right)
alone = torchmetrics.F1Score("multiclass", num_classes=3)
alone.update(model(x), y)
assert torch.equal(alone.compute(), f1.compute())
"""


@pytest.mark.slow
def test_the_pages_script_runs(tmp_path: Path) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "script.py").write_text(script + CHECK)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert re.match(r"loss \d\.\d{4}, right \d+/400, F1 0\.\d{4}\nright or second \d+/400\n", done.stdout), done.stdout
