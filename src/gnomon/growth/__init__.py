"""Making a trained model larger, or smaller again, without changing what it computes."""
