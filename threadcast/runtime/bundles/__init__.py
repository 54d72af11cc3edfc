"""Bundles: one file with what this machine has learned and compiled, for others of its kind.

A container image starts on a fresh disk: without a bundle each container measures, plans and compiles anew. A bundle
is a zip (`archive`) with a manifest (`manifest`: the machine, the versions, each file's size and SHA-256) and the files
of three places (`places`): stored plans (`plan_files`), measurements of operators in steps in the long form (`curves`),
and compiled code. `saving` makes one; `loading` checks all of it before it writes anything, then writes all or nothing,
and refuses a bundle of another machine or of other versions with the reason.

What a bundle holds is data that the readers of each place check again by themselves: a bundle is no way around them.
"""
