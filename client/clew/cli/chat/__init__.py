"""The chat on a terminal: what it shows and what may be typed (pure), and the shell around them."""
