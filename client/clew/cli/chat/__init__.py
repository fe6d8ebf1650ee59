"""The chat on a terminal.

| module | content |
|---|---|
| `typed_lines` | what may be typed: one table for parsing, help and completion; pure |
| `screen` | which blocks, live part and status line follow from a session's events; pure |
| `painting` | how each block looks, as text with colours; `clew.cli.show` has the lines of tool calls |
| `pictures` | pictures in a terminal that can show them |
| `display` | the terminal: the line that is typed, and what is printed above it |
| `shell` | the chat itself: prints a session's blocks, and sends what is typed |
"""
