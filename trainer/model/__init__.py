"""The model of a run: read from its file, and what follows from it and the data where a recipe says `auto`."""
