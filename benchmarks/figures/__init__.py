"""The pages of docs/figures: each section shows a table of data/studies that a benchmark's `--write` stored.

    python benchmarks/figures         writes every section anew from the stored tables

A page's words are written by hand. What stands between `<!-- begin NAME -->` and `<!-- end NAME -->` is made by the
study NAME, as a function of `data/studies/NAME.csv` alone; the modules here hold the studies, one module a page.
"""
