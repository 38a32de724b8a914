"""Detectors side by side: comparisons, tables, and what a difference is worth."""

from tulip_ood.benchmark.evaluate import evaluate
from tulip_ood.benchmark.results import Comparison, MethodResult, SetResult
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
