"""One kernel as data and as a file: how it is called, how it is built, what it takes of a GPU. No torch."""
