"""What an operator can set, where each value comes from, and what of it a running gateway takes anew."""
