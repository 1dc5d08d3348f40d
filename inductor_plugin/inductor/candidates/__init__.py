"""The choices of Inductor and our templates as candidates."""
