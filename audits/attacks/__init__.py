"""Attacks: functions of a view and of prior knowledge that return a finding."""
