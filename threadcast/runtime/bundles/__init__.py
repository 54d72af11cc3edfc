"""Bundles: one file with what this machine has learned and compiled, for others of its kind.

A container image starts on a fresh disk: without a bundle each container measures, plans and compiles anew. A bundle
is a zip (`archive`) of files by their paths and of what they are for, machine and versions (`manifest`): stored plans
and compiled code as they lie here (`places`), and measurements of operators in steps in the long form (`measured`).
`exchange` saves one, and loads one: it checks all of it before it writes anything, then writes all or nothing, and
refuses a bundle of another machine or of other versions with the reason.

What a bundle holds is data that the readers of each place check again by themselves: a bundle is no way around them.
"""
