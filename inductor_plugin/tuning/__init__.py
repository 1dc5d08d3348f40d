"""From the candidates of a problem to a decision: look up, compile, measure, record."""
