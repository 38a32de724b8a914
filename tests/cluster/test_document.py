"""The Python in docs/cluster.md runs, with a network that a function of the user's makes."""

import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "cluster.md"
FACTORY = """
def make_model():
    from tulip_ood.models.spec import load_model

    return load_model("tulip_cluster_net:make").module
"""


@pytest.mark.usefixtures("ray", "detector")
@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_the_python_in_the_document_runs(project: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}  # where users define such functions
    for block in [FACTORY, *re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)]:
        exec(compile(block, DOCUMENT.name, "exec"), names)
    assert names["summary"].rows == 60
    assert pq.read_table(project / "scores.parquet").num_rows == 60
