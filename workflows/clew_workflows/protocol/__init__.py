"""What the workflows send to activities and what comes back."""
