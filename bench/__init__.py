"""Measurements of Tenure beside its peers and beside the limits of the machine; ``python -m bench`` runs them."""
