"""The audit's report: its document as JSON, and one page of one or several audits."""
