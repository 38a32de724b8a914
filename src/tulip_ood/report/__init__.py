"""The self-contained HTML report."""

from tulip_ood.report.gallery import Examples
from tulip_ood.report.page import report_html, write_report

__all__ = ["Examples", "report_html", "write_report"]
