"""The audit's report: one HTML page, or Markdown, of one run or of several side by side."""

from secure_fl.audits.report.markdown import markdown
from secure_fl.audits.report.page import render

__all__ = ["markdown", "render"]
