"""The chat on a terminal.

| module | content |
|---|---|
| `commands` | what may be typed: one table for parsing, help and completion; pure |
| `screen` | the blocks, the live part and the status line that follow from a session's events; pure |
| `rendering` | these as text with colours |
| `display` | the terminal: the line that is typed, and what is printed above it |
| `shell` | the chat itself: prints a session's blocks, and sends what is typed |
"""
