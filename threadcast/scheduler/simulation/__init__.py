"""Runs policies and plans in simulated time, and checks schedules."""
