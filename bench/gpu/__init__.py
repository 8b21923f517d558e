"""Every part of the project once on a GPU: `python -m bench.gpu`."""
