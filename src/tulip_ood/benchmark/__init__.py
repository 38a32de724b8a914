"""Detectors side by side: comparisons, tables, and what a difference is worth."""

from tulip_ood.benchmark.compare import Comparison, MethodResult, SetResult, evaluate
from tulip_ood.benchmark.tables import plain_table, rich_table
from tulip_ood.benchmark.verdict import Verdict, judge

__all__ = [
    "Comparison",
    "MethodResult",
    "SetResult",
    "Verdict",
    "evaluate",
    "judge",
    "plain_table",
    "rich_table",
]
