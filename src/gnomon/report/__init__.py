"""Tables, figures, and a run with its figures."""
