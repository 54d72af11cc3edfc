"""Measuring on many machines: campaigns over a Dask cluster, and sending measurements to a service."""
