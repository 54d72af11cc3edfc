"""Plans of a step: the curves they are made from, the planner's process, their store, and plans for fewer cores."""
