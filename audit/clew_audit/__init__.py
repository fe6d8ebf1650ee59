"""What operators do with sessions from outside: audit, verify, recover, export, import.

It is not part of the package that is shipped, for it replays histories with the workflow's own code and reads the
archive's store: run it from the checkout or in the worker's image (`clew audit`, `clew recover`, ...).
"""
