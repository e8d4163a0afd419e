"""Tenure leases shared GPUs, runs work on them, and proves from measurement what each job did."""

__version__ = "0.1.0"
