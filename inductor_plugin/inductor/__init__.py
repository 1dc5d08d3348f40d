"""What is installed into Inductor, and removed again."""
